"""Published models under a log path: what a folder holds, its digests, which one is served.

Imports none of the package's other modules. Begin with `versions`.
"""
