"""Environments behind one small protocol, one file a kind.

May import: agent, service. Begin with `protocol` and `registry`.
"""
