"""The elastic rollout pool: engines join, leave and die; requests move between them and none is lost.

May import: cluster, engine, overrides, sections, service, weights. Begin with `scheduler.machine` (the
decisions) and `runtime.service` (what carries them out).
"""
