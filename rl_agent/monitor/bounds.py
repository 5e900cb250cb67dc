"""Reports in words which numbers of a run are out of the range in which training is known to work.

One table for the terminal and the page. A bound names where it is from; none of them stops a run.
"""

from dataclasses import dataclass

from rl_agent.monitor.report import Row
from rl_agent.types import Phase

FEW = 8
"""Nothing is suspicious of so few episodes."""
CUT_SHARE = 0.1
"""Share of cut responses from which a rising success may be a hole in the reward, unless the share falls."""
REPEATED_EVERY = 10
"""A number that stays out of range is reported again after so many iterations."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A largest usual value, or a smallest one as a share of the run's first value."""

    name: str
    words: str
    """The meaning of a value beyond the bound, and a remedy; `{}` stands for the value."""
    most: float = float("inf")
    least_of_first: float = 0.0

    def is_exceeded(self, value: float, first: float) -> bool:
        """Return whether a value is out of range, in a run that began with `first`."""
        return value >= self.most or value < self.least_of_first * first


BOUNDS: dict[Phase, tuple[Bound, ...]] = {
    "rollout": (
        Bound(
            "train/same_response_share",
            "{:.0%} of the train episodes have nearly the same response",
            most=0.9,
        ),
    ),
    "evaluate": (
        Bound(
            "test/same_response_share", "{:.0%} of the test episodes have nearly the same response", most=0.9
        ),
    ),
    "update": (
        # NeMo RL's recipes fail their test where the mean of exp(difference) is above 1.05 to 1.1.
        Bound(
            "trainer/logprob_difference",
            "engine and trainer differ by {:.3g} nats per token (usual: below 0.1): other weights, dtype,"
            " chat template or sampling settings than the trainer's",
            most=0.1,
        ),
        # DAPO (arXiv 2503.14476, 3.2): such groups have no gradient, and the batch that counts shrinks.
        Bound(
            "train/zero_std_groups_share",
            "{:.0%} of the groups have equal rewards and teach nothing: take harder or easier tasks, more"
            " siblings, or trainer/recipe=dapo, which samples others in their place",
            most=0.5,
        ),
        # GSPO (arXiv 2507.18071, 5.2) clips 0.15 of the tokens, the most that is published; PPO clip 0.001.
        Bound(
            "trainer/clip_fraction",
            "{:.0%} of the tokens are clipped (usual: below 30%): steps are too large or samples too old;"
            " lower trainer.optimizer.learning_rate or take fewer steps per iteration",
            most=0.3,
        ),
        # Cui et al. (arXiv 2505.22617): performance is traded for entropy, and ends where it is used up.
        Bound(
            "trainer/entropy",
            "entropy collapsed to {:.3g} nats, below a tenth of this run's first: exploration has ended; see"
            " trainer.loss.clip_high and trainer.loss.entropy_coefficient",
            least_of_first=0.1,
        ),
        Bound("trainer/is_skipped", "the gradient was not finite, and the step was skipped", most=1.0),
    ),
}
_EPISODES: dict[Phase, str] = {
    "rollout": "train/episodes",
    "evaluate": "test/episodes",
    "update": "trainer/episodes",
}


def warnings(rows: dict[int, Row], iteration: int, phase: Phase, *, is_repeated: bool = True) -> list[str]:
    """Return what should be looked at before the numbers of a phase are believed.

    Unless `is_repeated`, what was out of range before, too, is left out in nine of ten iterations.
    """
    row = rows.get(iteration, {})
    if row.get(_EPISODES[phase], 0) <= FEW:
        return []
    streaks = {bound: _streak(rows, iteration, bound) for bound in BOUNDS[phase] if bound.name in row}
    out_of_range = [
        bound.words.format(row[bound.name])
        for bound, streak in streaks.items()
        if streak and (is_repeated or streak % REPEATED_EVERY == 1)
    ]
    return [*_rising_while_cut(rows, iteration, phase), *out_of_range]


def newest_warnings(rows: dict[int, Row]) -> list[str]:
    """Return the warnings of the newest iteration in which each phase has numbers."""
    lines = []
    for phase, name in _EPISODES.items():
        iteration = max((number for number, row in rows.items() if name in row), default=0)
        lines += [f"iteration {iteration}: {words}" for words in warnings(rows, iteration, phase)]
    return lines


def before(rows: dict[int, Row], iteration: int, name: str) -> float | None:
    """Return the newest earlier value of a number."""
    earlier = [rows[number][name] for number in sorted(rows) if number < iteration and name in rows[number]]
    return earlier[-1] if earlier else None


def _streak(rows: dict[int, Row], iteration: int, bound: Bound) -> int:
    """Return how many values in a row are out of range, the last of them that of `iteration`."""
    values = [rows[n][bound.name] for n in sorted(rows) if n <= iteration and bound.name in rows[n]]
    in_range = (not bound.is_exceeded(value, values[0]) for value in reversed(values))
    return next((streak for streak, is_end in enumerate(in_range) if is_end), len(values))


def _rising_while_cut(rows: dict[int, Row], iteration: int, phase: Phase) -> list[str]:
    if phase == "update":
        return []
    split = "test" if phase == "evaluate" else "train"
    row, name = rows[iteration], f"{split}/success_rate"
    earlier, success = before(rows, iteration, name), row.get(name)
    cut_name = f"{split}/cut_responses_share"
    cut_share, cut_before = row.get(cut_name, 0.0), before(rows, iteration, cut_name)
    is_falling = cut_before is not None and cut_share < cut_before
    if earlier is None or success is None or success <= earlier or cut_share < CUT_SHARE or is_falling:
        return []
    return [
        f"{split} success rose to {success:.3f} while {cut_share:.0%} of the responses are cut at"
        " policy_config.max_new_tokens"
    ]
