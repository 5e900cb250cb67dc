"""Running episodes against engines, without a barrier anywhere.

Imports `trajectories`. Begin with `collect`.
"""
