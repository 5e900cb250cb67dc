"""HTTP server basics: the accept loop, tokens, size limits, streamed answers.

May import: system. Begin with `server`.
"""
