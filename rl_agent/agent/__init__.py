"""History to prompt tokens, response to action."""
