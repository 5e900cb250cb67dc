"""History to prompt tokens, response to action.

May import: engine (how tokens are sent to it). Begin with `chat`.
"""
