"""History to prompt tokens, response to action: text, or a call of a function.

May import: config, engine (how tokens are sent to it), system. Begin with `chat`.
"""
