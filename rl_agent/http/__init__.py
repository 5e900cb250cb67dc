"""HTTP basics: the accept loop, tokens, size limits, streamed answers, kept connections.

May import: system. Begin with `server`.
"""
