"""From trajectories to a published model, by LLaMA-Factory: select, export, render, train, publish.

May import: agent, cluster, engine, monitor, rollout, sections, weights. Begin with `prepare`.
"""
