"""Chooses which part of an episode's history the model is shown, and counts its tokens.

Imports `chat`. Begin with `window`.
"""
