"""Runtime of the scheduler: carries out its commands, feeds events back, keeps what outlives it in a journal.

Imports `scheduler` and `engines`. Begin with `service`.
"""
