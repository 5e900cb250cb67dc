"""Starts and stops the machines of a pool's engines: a process of its own that speaks HTTP with the manager.

May import: config, pool, system. Begin with `reconcile`.
"""
