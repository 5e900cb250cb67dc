"""Streaming GRPO: finished groups in, gradients of mini-batches out, a new weight version an iteration.

Begin with `worker` and `stream`.
"""
