"""Starting LLaMA-Factory and reading what it logs.

Imports `inputs`, `dataset` and `model`. Begin with `launch`.
"""
