"""What of an episode's history the model is shown, and how many tokens that takes.

Imports `chat`. Begin with `window`.
"""
