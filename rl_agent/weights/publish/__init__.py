"""Turns the tensors of a trainer or a checkpoint into a published version.

Imports `format` and `store`. Begin with `publish`.
"""
