"""The worker of one machine: it joins an engine to a pool and keeps its weights up to date.

Imports `engines`. Begin with `main`.
"""
