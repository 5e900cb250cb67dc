"""The data that an update trains on: chosen steps as the very tokens that were sampled.

Imports `model`. Begin with `samples`.
"""
