"""A real Chromium as an environment: pages are seen as screenshots, and acted on by mouse and keyboard.

May import: env. Begin with `environment`; `actions` has the grammar, `guard` owns the process of the
browser.
"""
