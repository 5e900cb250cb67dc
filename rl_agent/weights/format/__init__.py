"""Defines what a weight version is made of: manifest, types of tensors, pieces, digests, differences.

Pure, or work on bytes in memory. Imports none of the other rooms. Begin with `manifest`.
"""
