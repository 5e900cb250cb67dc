"""The scheduler at work: its commands carried out, events fed back, batches kept in a journal.

Imports `scheduler` and `engines`. Begin with `service`.
"""
