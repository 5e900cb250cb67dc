"""From `key=value` words and the files of `configs/` to a checked section of the configuration.

May import: sections. Begin with `compose`.
"""
