"""HTTP server basics: the accept loop, tokens, size limits, streamed answers.

May import: errors, files. Begin with `door`.
"""
