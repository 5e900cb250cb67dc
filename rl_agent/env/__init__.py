"""Environments behind one small protocol, one file a kind.

May import: agent. Begin with `protocol` and `registry`.
"""
