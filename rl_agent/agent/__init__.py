"""History to prompt tokens, response to action: text, or a call of a function.

May import: engine (how tokens are sent to it). Begin with `chat`.
"""
