"""Prints what a verb of run.sh waits for: now and then, each time one line of a terminal."""

import sys

from rl_agent.cluster.member.polling import next_line_s

LINE_CHARACTERS = 80


class WaitLines:
    """Prints now and then what is waited for, each time one line of a terminal."""

    def __init__(self) -> None:
        self._due_s = next_line_s(0)

    def is_due(self, waited_s: float) -> bool:
        """Return whether a wait of `waited_s` has been silent for long enough."""
        return waited_s >= self._due_s

    def print(self, waited_s: float, line: str) -> None:
        """Print the line, cut at LINE_CHARACTERS."""
        self.put_off(waited_s)
        is_long = len(line) > LINE_CHARACTERS
        print(f"{line[: LINE_CHARACTERS - 1]}…" if is_long else line, file=sys.stderr, flush=True)

    def put_off(self, waited_s: float) -> None:
        """Count the time to the next line from `waited_s`, as where something else was printed."""
        self._due_s = next_line_s(waited_s)
