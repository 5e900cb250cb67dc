"""Composes `key=value` words and the files of `configs/` into a checked section of the configuration.

Imports `sections`. Begin with `compose`.
"""
