"""One training step: advantages, losses, gradients, the optimizer, and its metrics.

Imports `data` and `model`. Begin with `update_step`.
"""
