"""What every HTTP service of this project has at its port: a door for strangers, and tokens.

May import: errors, files, unauthenticated. Begin with `door`.
"""
