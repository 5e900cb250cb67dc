"""Decides how many engines a pool wants, and starts and stops their machines.

May import: pool.scheduler, pool.client; the providers their own tools, lazily. Begin with `records`.
"""
