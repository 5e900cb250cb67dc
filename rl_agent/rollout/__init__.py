"""Collecting trajectories: the collector, its stop rule, the store."""
