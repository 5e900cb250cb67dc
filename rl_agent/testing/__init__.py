"""Stand-ins and settings that tests and benchmarks share: simulated engines, pools, clusters, bad networks.

May import: everything. Nothing of the package imports this, and it is not installed. Begin with
`simulated_engine` and `pool_world`.
"""
