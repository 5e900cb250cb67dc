"""Streaming GRPO: finished groups in, gradients of mini-batches out, a new weight version an iteration.

May import: cluster, engine, monitor, pool, rollout, sections, service, tasks, update, weights. Begin with
`worker` and `stream`.
"""
