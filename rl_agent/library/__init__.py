"""Collecting and publishing from Python: the names that `rl_agent` itself offers.

May import: chat, cluster, config, engine, env, plan, pool, rollout, tasks, trainer, weights.
Begin with `collect`.
"""
