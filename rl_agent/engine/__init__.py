"""Clients and processes of inference servers."""
