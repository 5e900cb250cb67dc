"""The two trainers, by their names in the configuration: `llamafactory` and `grpo`.

May import: chat, cluster, config, engine, http, monitor, pool, rollout, served_model, system, tasks, weights.
Begin with `llamafactory.prepare` or `grpo.worker`.
"""
