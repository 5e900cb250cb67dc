"""Files, processes and their owners, threads, signals and the terminal, as the operating system gives them.

May import: no other package. Begin with `files` and `owned`.
"""
