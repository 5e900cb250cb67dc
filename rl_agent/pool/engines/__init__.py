"""Connections to inference engines: their dialects, their streams, tunnels to those that nobody can reach.

Imports `scheduler`. Begin with `link`.
"""
