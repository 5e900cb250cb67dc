"""Task files: load and check them, sample from them.

May import: config, system. Begin with `load`.
"""
