"""Opens one authenticated connection between two hosts; every wait on it has a deadline.

Imports none of the other rooms. Begin with `channel`.
"""
