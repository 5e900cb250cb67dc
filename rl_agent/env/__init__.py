"""Environments behind one small protocol; one file a kind."""
