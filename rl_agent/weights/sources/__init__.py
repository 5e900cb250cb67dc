"""Reads the pieces of a version from a server over TCP or HTTP, or from a folder of this host.

Imports `connection`, `format` and `store`. Begin with `source`.
"""
