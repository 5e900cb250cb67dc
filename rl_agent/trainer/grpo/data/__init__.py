"""Finished groups on their way to a training step: read, admitted by age, put in order, packed.

Imports none of the other rooms. Begin with `samples`.
"""
