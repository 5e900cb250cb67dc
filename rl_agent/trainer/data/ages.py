"""How old the tokens are that a step trains on: in weight versions, and in updates of the weights.

A version is made by each iteration, of one update or many. A step that is not the first of its iteration
starts from weights that no engine has: what it trains on is of the newest version, and some updates old.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from rl_agent.trainer.data.admission import AdmissionRule
from rl_agent.trainer.data.samples import Sample


class Ages:
    """Counts how old the tokens are that one trainer trains on; part of its checkpoints."""

    def __init__(self, rule: AdmissionRule) -> None:
        self.updates_after = {0: 0}
        """Updates made in all by the end of an iteration, of those that samples may still be of."""
        self._rule = rule

    def restore(self, updates_after: Mapping[int, int]) -> None:
        self.updates_after = dict(updates_after)

    def note(self, iteration: int, updates: int) -> None:
        """Record the updates made by the end of an iteration, or by the start after it."""
        oldest = iteration - self._rule.max_staleness
        kept = {made: count for made, count in self.updates_after.items() if oldest <= made < iteration}
        self.updates_after = kept | {iteration: updates}

    def numbers(
        self, trained: Iterable[Sample], *, version: int, iteration: int | None, updates: int
    ) -> dict[str, float]:
        """Of a step from `version`, the one of `iteration`, after so many updates; None: there are none.

        What is not known, as after a checkpoint of another release, is left out.
        """
        counts = Counter(self._rule.age(sample.versions, version) for sample in trained)
        found: dict[str, float] = {f"staleness/{age}": count for age, count in sorted(counts.items())}
        began = self.updates_after.get(iteration - max(counts)) if counts and iteration is not None else None
        if began is not None:
            found["updates_since_sampling"] = updates - began
        return found
