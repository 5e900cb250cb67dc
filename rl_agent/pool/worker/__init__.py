"""One machine that lends an engine to a pool: the engine's process, its weights, its tunnel, its end.

Imports `engines`. Begin with `main`.
"""
