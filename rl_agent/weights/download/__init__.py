"""Fetches a version into this host's store from several sources at once.

Imports `sources`, `connection`, `format` and `store`. Begin with `receive`.
"""
