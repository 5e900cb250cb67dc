"""Makes, transfers and loads versions of a model's weights.

A version is a manifest and immutable bytes. Whoever knows a manifest's digest can take the bytes from
anyone: each piece is checked against the manifest, and nothing is served that was not.
May import: cluster, config, system. Begin with `format.manifest`, then `publish.publish` and
`download.fetch`.
"""
