"""Publishes a model trained on trajectories by LLaMA-Factory: select, export, render, train, publish.

Imports none of the other rooms. Begin with `prepare`.
"""
