"""Published models under a log path: their files and digests, and which one is served.

Imports none of the package's other modules. Begin with `versions`.
"""
