"""Serves the versions of this host's store to receivers that know the token.

Imports `pairs`, `sources`, `connection`, `format` and `store`. Begin with `server`.
"""
