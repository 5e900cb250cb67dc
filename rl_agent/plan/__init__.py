"""Makes a checked plan from the words that a person typed: arguments, configuration, this machine.

May import: all that a run uses, which it checks: chat, cluster, config, engine, env, http, judge, monitor,
pool, rollout, served_model, system, tasks, trainer, weights. Begin with `make`.
"""
