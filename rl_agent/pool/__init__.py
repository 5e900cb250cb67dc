"""The elastic rollout pool: engines join, leave and die; requests move between them and none is lost."""
