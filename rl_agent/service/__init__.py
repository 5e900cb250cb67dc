"""What HTTP has at this project's doors: strangers, tokens, and answers without end.

May import: errors, files. Begin with `door`.
"""
