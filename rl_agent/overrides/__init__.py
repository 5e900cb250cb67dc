"""Composes `key=value` words and the files of `configs/` into a checked section of the configuration.

May import: sections. Begin with `compose`.
"""
