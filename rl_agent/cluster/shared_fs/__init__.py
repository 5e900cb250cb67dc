"""The nodes of a run share this on disk: whole-file JSON records, process identities, the lock of a run.

Imports nothing of the package's other rooms. Begin with `folder`.
"""
