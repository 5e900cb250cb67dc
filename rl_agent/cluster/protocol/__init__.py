"""The nodes of a run speak to each other by this protocol, and the master decides by it.

Pure, but for `records`, which reads and writes the shared folder. Imports `shared_fs`. Begin with `protocol`.
"""
