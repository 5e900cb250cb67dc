"""The data that an update trains on: chosen steps as the very tokens that were sampled.

Imports `inputs` and `model`. Begin with `samples`.
"""
