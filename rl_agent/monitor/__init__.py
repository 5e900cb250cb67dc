"""What a person sees of a run: progress, metrics, curves, wandb.

May import: no other package. Begin with `metrics`.
"""
