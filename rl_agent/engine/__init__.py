"""Inference servers: clients, the command that starts one, and which weight version it serves.

May import: config, http, system, weights. Begin with `client` and `server`.
"""
