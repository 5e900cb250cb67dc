"""The result of judging an episode."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reward with the reasons for it; `detail` is recorded as the trajectory's `reward_detail`."""

    reward: float
    detail: dict[str, Any] = field(default_factory=dict)
