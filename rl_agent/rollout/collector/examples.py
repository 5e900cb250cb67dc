"""Keeps two responses of a rollout to look at, and counts how many are one and the same.

A hole in a reward is seen there within minutes: by the response that it rewards, or by one that it rewards
everywhere.
"""

from collections import Counter
from typing import Any

from rl_agent.types import Status, Trajectory

COMPARED_CHARACTERS = 2000
KEPT_CHARACTERS = 300


class Examples:
    """The responses of one split and iteration; `add` each episode once it is recorded."""

    def __init__(self) -> None:
        self._chosen: dict[bool, Trajectory] = {}
        """A rewarded and a failed episode, by the lowest seed: the first to end would be the shortest."""
        self._responses: Counter[int] = Counter()
        self._answers: Counter[int] = Counter()

    def add(self, trajectory: Trajectory, *, is_success: bool) -> None:
        if trajectory.status is not Status.COMPLETED or not trajectory.steps:
            return
        chosen = self._chosen.get(is_success)
        if chosen is None or trajectory.seed < chosen.seed:
            self._chosen[is_success] = trajectory
        self._responses[_kind_of(" ".join(step.generation.text for step in trajectory.steps))] += 1
        self._answers[_kind_of(trajectory.task.answer or trajectory.key.task_id)] += 1

    def record(self) -> list[dict[str, Any]]:
        """Return the rewarded and the failed episode, as far as there are some."""
        return [
            {
                "is_success": is_success,
                "reward": chosen.reward,
                "response": chosen.steps[-1].generation.text.strip()[-KEPT_CHARACTERS:],
                "expected": (chosen.task.answer or "")[:KEPT_CHARACTERS],
                "prompt": chosen.task.prompt.strip()[-KEPT_CHARACTERS:],
            }
            for is_success in (True, False)
            if (chosen := self._chosen.get(is_success)) is not None
        ]

    def same_response_share(self) -> float:
        """Return the share of the commonest response, less that of the commonest expected answer."""
        return max(0.0, _commonest_share(self._responses) - _commonest_share(self._answers))


def _kind_of(text: str) -> int:
    return hash("".join(filter(str.isalnum, text[:COMPARED_CHARACTERS].casefold())))


def _commonest_share(counter: Counter[int]) -> float:
    return max(counter.values()) / counter.total() if counter else 0.0
