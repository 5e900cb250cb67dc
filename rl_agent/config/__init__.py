"""The configuration of a run and its plan: what a person typed, composed and checked.

May import: http, system. Begin with `plan`, then `overrides.compose`.
"""
