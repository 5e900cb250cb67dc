"""Decides how many engines of each kind a pool wants. Pure.

Imports `scheduler`. Begin with `records`.
"""
