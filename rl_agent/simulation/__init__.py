"""The pool and a streaming trainer in virtual time: what a set of machines would do and cost.

May import: config, monitor, pool, system, trainer. Begin with `loop`.
"""
