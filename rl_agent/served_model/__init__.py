"""Published models under a log path: their files and digests, and which one is served.

May import: cluster, config, engine, system, weights. Begin with `versions`.
"""
