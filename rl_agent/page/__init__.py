"""The page of a run: what happened, every trajectory, the pool; read-only, from files and the manager's API.

May import: agent, cluster, config, env, errors, files, monitor, paths, rollout, service,
small_http, tls, types. Begin with `server`.
"""
