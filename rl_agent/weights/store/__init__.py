"""Stores a host's weight versions in a folder, and reads the tensors that go into them.

Imports `format`. Begin with `store`.
"""
