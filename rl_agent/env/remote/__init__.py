"""Environments in worker processes here, and on environment servers of other machines.

May import: env. Begin with `environments`, then `wire`.
"""
