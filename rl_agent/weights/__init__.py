"""Weight versions: what one is, where it lies, how it travels, and how an engine comes to serve it.

A version is a manifest and immutable bytes. Whoever knows a manifest's digest can take the bytes from
anyone: each piece is checked against the manifest, and nothing is served that was not.
"""
