"""The parts of the configuration that have a file of their own, and the ranges of all values.

May import: no other package. Begin with `base`.
"""
