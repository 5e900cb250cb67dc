"""The policy as a model: loaded, checked, sharded, and scored over packed sequences.

Imports `data`. Begin with `policy`.
"""
