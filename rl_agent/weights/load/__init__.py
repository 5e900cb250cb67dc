"""Loads a version from a store into a running inference engine, vLLM or SGLang.

Imports `sources`, `format` and `store`. Begin with `base`.
"""
