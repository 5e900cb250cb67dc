"""Transfers pieces over a private pair of sender and receiver, by NCCL.

Imports `sources` and `connection`. Begin with `pairs`.
"""
