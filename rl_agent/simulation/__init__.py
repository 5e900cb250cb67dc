"""The pool and a streaming trainer in virtual time: what a set of machines would do and cost.

May import: monitor, overrides, pool, sections, trainer. Begin with `loop`.
"""
