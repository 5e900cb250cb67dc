"""The pool's decisions as a pure state machine: events in, commands out.

Imports none of the other rooms. Begin with `machine`.
"""
