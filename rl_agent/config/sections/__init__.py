"""The parts of the configuration that have a file of their own, and the ranges of all values.

Imports none of the other rooms. Begin with `base`.
"""
