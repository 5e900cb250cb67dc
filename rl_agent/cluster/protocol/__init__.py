"""What the nodes of a run say to each other, and what the master decides about it.

Pure, but for `records`, which reads and writes the shared folder. Imports `shared_fs`. Begin with `protocol`.
"""
