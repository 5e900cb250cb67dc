"""Living processes, found by a variable of their environment, which all that they start inherit."""

from pathlib import Path


def processes_with(mark: str) -> dict[int, str]:
    """The command lines, by process id, of those that have `NAME=VALUE` in their environment."""
    marked = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                marked[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return marked
