"""A person sees a run through this: progress, metrics, curves, wandb.

May import: no other package. Begin with `metrics`.
"""
