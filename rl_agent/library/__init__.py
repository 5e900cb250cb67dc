"""Collecting from Python: the names that `rl_agent` itself offers.

May import: chat, cluster, config, engine, env, plan, rollout, tasks. Begin with `collect`.
"""
