"""Predicts the length of a response: as long as those to the same task at the same turn were.

A pool begins with what takes longest, and gives it its fast engines, if it is told so. Siblings say it first;
between iterations the means are kept in a file of the run, in which what is older counts less.
"""

from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from rl_agent.system import files
from rl_agent.types import Trajectory

MOST_REMEMBERED = 8.0
"""Responses that what was learned in earlier iterations counts for: the policy goes on changing."""
_MEANS = TypeAdapter(dict[str, list[tuple[float, float]]])


class ResponseLengths:
    """Mean tokens of the responses to each task, by turn."""

    def __init__(self, means: dict[str, list[tuple[float, float]]] | None = None) -> None:
        self._means = means or {}
        """The count and the mean of the lengths seen, turn by turn."""

    def add(self, task_id: str, turn: int, tokens: int) -> None:
        """A response has ended; turns come in order."""
        means = self._means.setdefault(task_id, [])
        if turn >= len(means):
            means.append((1.0, float(tokens)))
            return
        seen, mean = means[turn]
        means[turn] = (seen + 1.0, mean + (tokens - mean) / (seen + 1.0))

    def add_all(self, trajectory: Trajectory) -> None:
        """Add the responses of an episode that was run elsewhere or before."""
        for turn, step in enumerate(trajectory.steps):
            self.add(trajectory.key.task_id, turn, len(step.generation.token_ids))

    def expected(self, task_id: str, turn: int) -> int:
        """Return the tokens that the response is likely to have; 0 where nothing is known yet."""
        means = self._means.get(task_id, [])
        return max(1, round(means[turn][1])) if turn < len(means) else 0

    def save(self, path: Path) -> None:
        """Save what the next iterations take over, here as well as from the file."""
        self._means = {
            task_id: [(min(seen, MOST_REMEMBERED), round(mean, 1)) for seen, mean in means]
            for task_id, means in self._means.items()
        }
        files.write_whole(path, _MEANS.dump_json(self._means), is_durable=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Take over what an earlier iteration saved; what cannot be read is not missed."""
        try:
            return cls(_MEANS.validate_json(path.read_bytes()))
        except (OSError, ValidationError):
            return cls()
