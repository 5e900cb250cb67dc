"""Nodes of a run for tests: members in threads, a rank as a process, a shared folder that is late.

Begin with `members`.
"""
