"""Shows what a verb of run.sh waits for: one rewritten line on a terminal, else a plain line now and then."""

import sys

from rl_agent.cluster.member.polling import next_line_s
from rl_agent.monitor.progress import LiveLine, cut


class WaitLines(LiveLine):
    """Shows what is waited for; a context manager."""

    def __init__(self) -> None:
        super().__init__()
        self._due_s = next_line_s(0)

    def report(self, waited_s: float, line: str) -> None:
        """Rewrite the terminal's line; in a file print one where a wait of `waited_s` was silent for long."""
        if self.is_shown:
            self.show(cut(line))
        elif waited_s >= self._due_s:
            self._due_s = next_line_s(waited_s)
            print(cut(line), file=sys.stderr, flush=True)
