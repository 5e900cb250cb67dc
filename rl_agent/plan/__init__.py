"""Makes a checked plan from the words that a person typed: arguments, configuration, this machine.

May import: all that a run uses, which it checks: agent, cluster, engine, env, monitor, overrides, pool,
reward, rollout, sections, service, tasks, trainer, update, weights. Begin with `make`.
"""
