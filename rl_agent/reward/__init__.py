"""Rewards that no environment gives: the model judge and its cache.

May import: no other package. Begin with `judge`.
"""
