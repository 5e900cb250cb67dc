"""Recorded trajectories on disk: the format of a line and a shard, the store, reading and checking.

Imports none of the package's other modules. Begin with `store`.
"""
