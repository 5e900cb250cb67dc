"""Rewards that no environment gives: the model judge and its cache.

May import: service. Begin with `judge`.
"""
