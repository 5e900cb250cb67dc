"""The worker of one machine: it joins an engine to a pool and keeps its weights up to date.

May import: cluster, config, engine, http, pool, system, weights. Begin with `main`.
"""
