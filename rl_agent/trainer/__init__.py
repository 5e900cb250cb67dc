"""Streaming GRPO: finished groups in, gradients of whole mini-batches out, a new weight version a step."""
