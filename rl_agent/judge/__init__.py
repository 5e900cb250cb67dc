"""Rewards that no environment gives: the model judge and its cache.

May import: config, http, system. Begin with `judge`.
"""
