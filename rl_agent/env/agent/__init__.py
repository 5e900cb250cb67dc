"""Agents that are programs: they speak the OpenAI chat API, and all that they are answered is the episode.

Begin with `session` and `environment`.
"""
