"""One node as a member of a run: its heartbeat, what it waits for, and the master's thread that decides.

Imports `protocol` and `shared_fs`. Begin with `node`.
"""
