"""The elastic rollout pool: engines join, leave and die; requests move between them and none is lost.

May import: chat, cluster, config, engine, http, system, weights. Begin with `scheduler.machine` (the
decisions) and `runtime.service` (what carries them out).
"""
