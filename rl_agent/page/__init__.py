"""The page of a run: what happened, every trajectory, the pool; read-only, from files and the manager's API.

May import: chat, cluster, config, env, http, monitor, rollout, system, trainer (samples).
Begin with `server`.
"""
