"""The state that a trainer saves, resumes from, and promotes to a served model.

Imports `data`, `model`, `step` and `gpu_sharing`. Begin with `checkpoint`.
"""
