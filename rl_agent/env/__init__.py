"""Environments behind one small protocol, one file a kind.

May import: chat, config, http, system. Begin with `protocol` and `registry`.
"""
