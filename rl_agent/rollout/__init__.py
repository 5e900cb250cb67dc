"""Collecting trajectories: the sample, the collector, its stop rule, the files.

May import: agent, cluster, engine, env, monitor, pool, reward, sections, tasks. Begin with `run`.
"""
