"""Transfers pieces over a private pair of sender and receiver: NCCL, Mooncake.

Imports `sources` and `connection`. Begin with `pairs`.
"""
