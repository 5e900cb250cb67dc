"""Rewards that no environment gives: the model judge and its cache.

May import: sections, service. Begin with `judge`.
"""
