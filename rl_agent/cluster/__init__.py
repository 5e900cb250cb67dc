"""Runs and their nodes, as recorded under the log path: who is alive, what is ordered and decided.

May import: config, system. Begin with `protocol.protocol` (the decisions) and `member.member`.
"""
