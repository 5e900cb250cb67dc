"""Task files: load and check them, sample from them.

May import: sections. Begin with `load`.
"""
