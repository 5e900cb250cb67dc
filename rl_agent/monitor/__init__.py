"""A person sees a run through this: progress, metrics, curves, wandb.

May import: config, system. Begin with `metrics`.
"""
