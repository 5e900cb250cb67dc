"""A rollout's numbers, kept up episode by episode in constant memory.

Rates name their denominator: `success_rate`, `reward_mean` and `truncated_share` are over the episodes that
completed, since an outage is not a failure of the model; `completed_share`, `failed_share`,
`timed_out_share` and `abandoned_share` are over all. Every name is prefixed with the split, and those of a
difficulty with `split/difficulty`. What the judge cost is summed over the recorded verdicts, whichever node
asked for them.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rl_agent.monitor import attempts
from rl_agent.rollout.collector.examples import Examples
from rl_agent.rollout.collector.failures import FailureReasons
from rl_agent.system.terminal import one_line
from rl_agent.types import EpisodeKey, Split, Status, Trajectory, reaches

Numbers = dict[str, float]

TEST_SET = "test_set"
"""Field of a task that names the test set to which it belongs."""
MAX_NAME = 60
_LOWEST_S = 1e-4
_GROWTH = 1.1


@dataclass(slots=True)
class Durations:
    """Percentiles of durations from a histogram: each bucket is 10 % wide, so is the error."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, seconds: float) -> None:
        bucket = 0 if seconds <= _LOWEST_S else math.ceil(math.log(seconds / _LOWEST_S, _GROWTH))
        self.counts[bucket] += 1

    def percentile(self, share: float) -> float:
        """Return the upper edge of the bucket that holds it, in seconds; 0 for the lowest or none at all."""
        left = share * self.counts.total()
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return _LOWEST_S * _GROWTH**bucket if bucket else 0.0
        return 0.0


@dataclass(slots=True)
class Tally:
    """Sums over some of the episodes."""

    statuses: Counter[Status] = field(default_factory=Counter)
    successes: int = 0
    rewarded: int = 0
    reward_mean: float = 0.0
    reward_spread: float = 0.0
    """Sum of the squared distances from the mean; Welford 1962, for sums of squares cancel."""
    named_rewards: dict[str, tuple[int, float]] = field(default_factory=dict)
    """The episodes that have a named reward, and its sum over them."""
    truncated: int = 0
    steps: int = 0
    invalid: int = 0
    """Steps whose action could not be read or carried out."""
    prompt_tokens: int = 0
    """Put into contexts; a turn whose context was sent whole again counts whole."""
    response_tokens: int = 0
    cut_responses: int = 0
    """Responses that ended at the token limit."""

    def add(self, trajectory: Trajectory, *, is_success: bool) -> None:
        self.statuses[trajectory.status] += 1
        if trajectory.reward is not None:
            self.successes += is_success
            self.rewarded += 1
            distance = trajectory.reward - self.reward_mean
            self.reward_mean += distance / self.rewarded
            self.reward_spread += distance * (trajectory.reward - self.reward_mean)
            self.truncated += trajectory.truncated
            for name, reward in trajectory.rewards.items():
                count, total = self.named_rewards.get(name, (0, 0.0))
                self.named_rewards[name] = (count + 1, total + reward)
        self.steps += len(trajectory.steps)
        for step in trajectory.steps:
            self.invalid += step.invalid
            self.prompt_tokens += len(step.prompt_token_ids)
            self.response_tokens += len(step.generation.token_ids)
            self.cut_responses += step.generation.finish_reason == "length"

    def numbers(self) -> Numbers:
        episodes, completed = self.statuses.total(), self.statuses[Status.COMPLETED]
        numbers: Numbers = {"episodes": episodes}
        numbers |= {f"{status}_share": _share(self.statuses[status], episodes) for status in Status}
        if completed:  # without a reward there is no mean, and 0 would be a claim
            numbers["success_rate"] = self.successes / completed
            numbers["reward_mean"] = self.reward_mean
            numbers["reward_std"] = math.sqrt(self.reward_spread / completed)
            numbers["truncated_share"] = self.truncated / completed
            for name, (count, total) in sorted(self.named_rewards.items()):
                numbers[f"reward/{name}"] = total / count
        numbers["steps_mean"] = _share(self.steps, episodes)
        numbers["invalid_share"] = _share(self.invalid, self.steps)
        numbers["prompt_tokens"] = self.prompt_tokens
        numbers["response_tokens"] = self.response_tokens
        numbers["response_tokens_mean"] = _share(self.response_tokens, self.steps)
        numbers["cut_responses_share"] = _share(self.cut_responses, self.steps)
        return numbers


class RolloutMetrics:
    """The metrics of one split and iteration; `add` each episode once it is recorded."""

    def __init__(self, split: Split, *, success_reward: float) -> None:
        self.total = Tally()
        self._split = split
        self._success_reward = success_reward
        self._of_difficulty: dict[str, Tally] = {}
        self.failures: Counter[str] = Counter()
        self.reasons = FailureReasons()
        self.examples = Examples()
        self._weight_version = 0
        self._lost_attempts: Counter[str] = Counter()
        self._queue = Durations()
        self._request = Durations()
        self._environment = Durations()
        self._judge: dict[str, float] = {}
        self._tried: dict[str, dict[str, tuple[int, int]]] = {"": {}}
        """Attempts and successes by test set and task; the whole is the set without a name."""
        self._rewards: dict[tuple[str, int], tuple[int, float, float]] = {}
        """The siblings with a reward of each group, and the lowest and highest of their rewards."""

    def add(self, trajectory: Trajectory) -> None:
        is_success = trajectory.reward is not None and reaches(trajectory.reward, self._success_reward)
        self.total.add(trajectory, is_success=is_success)
        of_difficulty = self._of_difficulty.setdefault(trajectory.task.difficulty, Tally())
        of_difficulty.add(trajectory, is_success=is_success)
        self.examples.add(trajectory, is_success=is_success)
        self._weight_version = max(self._weight_version, trajectory.weight_version_max)
        if trajectory.failure is not None and trajectory.status is not Status.ABANDONED:
            self.failures[trajectory.failure.kind] += 1
            self.reasons.add(trajectory.failure)
        if self._split == "test":  # all attempts, so that every k is of the same tasks
            self._add_attempt(trajectory, is_success=is_success)
        elif trajectory.reward is not None:
            self._add_sibling(trajectory.key, trajectory.reward)
        self._lost_attempts.update(lost.failure.kind for lost in trajectory.lost_attempts)
        for step in trajectory.steps:
            self._queue.add(step.generation.queue_s)
            self._request.add(step.generation.duration_s)
            self._environment.add(step.env_s)
        if "judge_model" in trajectory.reward_detail:
            self._add_verdict(trajectory.reward_detail)

    def _add_attempt(self, trajectory: Trajectory, *, is_success: bool) -> None:
        for name in {"", _set_of(trajectory)}:
            tasks = self._tried.setdefault(name, {})
            tried, solved = tasks.get(trajectory.key.task_id, (0, 0))
            tasks[trajectory.key.task_id] = (tried + 1, solved + is_success)

    def _add_sibling(self, key: EpisodeKey, reward: float) -> None:
        count, lowest, highest = self._rewards.get((key.task_id, key.group), (0, reward, reward))
        spread = (count + 1, min(lowest, reward), max(highest, reward))
        self._rewards[key.task_id, key.group] = spread

    def outcomes(self) -> dict[str, dict[str, int]]:
        """Return how often the tasks of each test set were tried and solved; empty for a rollout."""
        return {name: attempts.outcomes_of(tasks) for name, tasks in sorted(self._tried.items()) if tasks}

    def _add_verdict(self, detail: dict[str, Any]) -> None:
        spent = {"verdicts": 1, "cached": detail["is_cached"]}
        spent |= {name: detail[name] for name in ("prompt_tokens", "completion_tokens", "cost_usd")}
        self._judge = {name: self._judge.get(name, 0) + value for name, value in spent.items()}

    def numbers(self) -> Numbers:
        """Flat and prefixed: `train/success_rate`, `train/easy/reward_mean`, `train/failures/EngineError`."""
        split = self._split
        numbers = {f"{split}/{name}": value for name, value in self.total.numbers().items()}
        numbers[f"{split}/weight_version"] = self._weight_version
        numbers[f"{split}/same_response_share"] = self.examples.same_response_share()
        for difficulty, tally in sorted(self._of_difficulty.items()):
            numbers |= {f"{split}/{difficulty}/{name}": value for name, value in tally.numbers().items()}
        if compared := [spread for spread in self._rewards.values() if spread[0] > 1]:
            equal = sum(lowest == highest for _, lowest, highest in compared)
            numbers[f"{split}/zero_std_groups_share"] = equal / len(compared)
        for name, outcomes in self.outcomes().items():
            prefix = f"{split}/set/{name}" if name else split
            numbers |= {f"{prefix}/{measure}": v for measure, v in attempts.numbers_of(outcomes).items()}
        numbers |= {f"{split}/failures/{kind}": count for kind, count in sorted(self.failures.items())}
        lost = sorted(self._lost_attempts.items())
        numbers |= {f"{split}/lost_attempts/{kind}": count for kind, count in lost}
        numbers |= {f"{split}/judge_{name}": value for name, value in self._judge.items()}
        durations = {"queue": self._queue, "request": self._request, "environment": self._environment}
        for name, histogram in durations.items():
            numbers[f"{split}/{name}_s_p50"] = histogram.percentile(0.50)
            numbers[f"{split}/{name}_s_p95"] = histogram.percentile(0.95)
        return numbers


def _set_of(trajectory: Trajectory) -> str:
    """Return the name of the test set as a part of a metric's name; empty if the task names none."""
    name = trajectory.task.extra.get(TEST_SET, "")
    return one_line(str(name)[:MAX_NAME]).replace("/", "_").strip()


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
