"""The optimizer's state from one update to the next, for any number of processes.

Imports `llamafactory`. Begin with `resume`.
"""
