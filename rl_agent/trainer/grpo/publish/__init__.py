"""Publishes the tensors of the trainer's policy to the engines of a pool.

Imports `model`. Begin with `feed`.
"""
