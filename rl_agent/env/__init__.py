"""Environments behind one small protocol, one file a kind.

May import: agent, overrides, sections, service. Begin with `protocol` and `registry`.
"""
