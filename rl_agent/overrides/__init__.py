"""From `key=value` words and the files of `configs/` to a checked section of the configuration.

May import: no other package. Begin with `compose`.
"""
