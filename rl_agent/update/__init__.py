"""Publishes a model trained on trajectories by LLaMA-Factory: select, export, render, train, publish.

May import: agent, cluster, engine, monitor, rollout, sections, weights. Begin with `prepare`.
"""
