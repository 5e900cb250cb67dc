"""Environments behind one small protocol, one file per kind.

May import: chat, config, http, system. Begin with `protocol` and `registry`.
"""
