"""Stand-ins and settings that tests and benchmarks share: simulated engines, pools, clusters, bad networks.

Begin with `simulated_engine` and `pool_world`.
"""
