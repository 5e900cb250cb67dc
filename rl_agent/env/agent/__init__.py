"""Agents that are programs: they speak OpenAI's API, and all that they are answered is the episode.

Begin with `session` and `environment`.
"""
