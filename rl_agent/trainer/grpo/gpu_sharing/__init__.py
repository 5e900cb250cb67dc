"""Sharing the trainer's GPUs with an engine of the pool, in turns.

Imports `data`. Begin with `sharing`.
"""
