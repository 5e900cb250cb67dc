"""Collecting trajectories: the sample, the collector, its stop rule, the files.

May import: chat, cluster, config, engine, env, judge, monitor, pool, system, tasks. Begin with `run`.
"""
