"""Task files: load and check them, sample from them.

May import: no other package. Begin with `load`.
"""
