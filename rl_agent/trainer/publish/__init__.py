"""From the trainer's policy to the engines of a pool: the tensors of its model folder, published.

Imports `model`. Begin with `feed`.
"""
