"""The values that flow from a task file to the trainer.

Every type here is immutable and plain: it can be written as one JSON line and read back unchanged
(`rollout.store` does both). Token ids and logprobs are recorded as the engine returned them; nothing
downstream may re-tokenise text to get them back.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Split = Literal["train", "test"]
Phase = Literal["rollout", "evaluate", "update"]

SCHEMA_VERSION = 3
"""Version of the trajectory lines on disk; readers refuse a newer one.

Since 2 each line has a checksum, since 3 each step the context that the engine saw.
"""


def writable(text: str) -> str:
    """Return `text` with half characters (lone surrogates) as escapes: no file can hold them."""
    return text.encode(errors="backslashreplace").decode()


REWARD_TOLERANCE = 1e-9


def reaches(reward: float, threshold: float) -> bool:
    """Return whether a reward is at or above a threshold, rounding aside: 0.7 + 0.1 reaches 0.8."""
    return reward >= threshold or math.isclose(
        reward, threshold, rel_tol=REWARD_TOLERANCE, abs_tol=REWARD_TOLERANCE
    )


@dataclass(frozen=True, slots=True)
class Task:
    """An immutable problem from a task file."""

    task_id: str
    prompt: str
    env: str
    """Key of `env_config.kinds`: which environment runs it."""
    difficulty: str
    """`easy`, `medium` or `hard`; numbers in a task file are mapped on load."""
    answer: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Every other field of the task's line, unchanged."""


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """Names one attempt inside one iteration; equal keys are the same episode, also after a resume."""

    task_id: str
    group: int
    """The number of times that this task had been sampled before in the same iteration."""
    attempt: int
    """Index among the siblings of the group, from 0."""

    def __str__(self) -> str:
        return f"{self.task_id}:{self.group}:{self.attempt}"


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """One episode to run."""

    key: EpisodeKey
    task: Task
    max_steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Observation:
    """The text and images that the environment shows before a response."""

    text: str
    images: tuple[str, ...] = ()
    """Absolute paths of image files."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer of an environment to an action."""

    observation: Observation
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    """The environment ended the episode for a limit of its own."""
    changed: bool = True
    """False where the action left the visible state as it was (screen environments)."""
    invalid: bool = False
    """The action could not be read or carried out; the observation says why in one line."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Named rewards, which count beside `reward`, each with its weight of `rollout.reward_weights`."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive tokens of a response that one engine of a pool sampled with the same weights."""

    tokens: int
    weight_version: int
    engine: str
    """Its id in the pool."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One response of an engine."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log-probability of each sampled token, same length as `token_ids`."""
    text: str
    finish_reason: str
    """`stop`, `length` or `abort`, as the engine says."""
    weight_version_min: int
    weight_version_max: int
    queue_s: float = 0.0
    """Seconds between asking for a place at the engine and sending the request."""
    duration_s: float = 0.0
    spans: tuple[TokenSpan, ...] = ()
    """The engines that sampled the tokens, and how many each, in order; empty where one server made all, and
    in older files."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """A summary that the model wrote of steps which a context then had no room for."""

    steps: int
    """Number of steps, from the first, that it stands for."""
    prompt_token_ids: tuple[int, ...]
    """The whole context in which it was written."""
    images: tuple[str, ...]
    """Digests of the images in that context, in order."""
    generation: Generation


@dataclass(frozen=True, slots=True)
class SeenContext:
    """The part of its episode that the engine saw at a step, beside the tokens."""

    policy: str = ""
    """`context.kind`."""
    images: tuple[str, ...] = ()
    """SHA-256 of each image in the context, in the order of their placeholders among the tokens."""
    whole_from: int = 0
    """Index of the first earlier step that was shown whole."""
    as_lines: int = 0
    """Number of steps before that one that were shown as a line each; those before them were left out."""
    compactions: tuple[Compaction, ...] = ()
    """Summaries written before this step; later steps show the last one until there is another."""


SequenceBegin = Literal["", "new", "branch", "edited"]
"""`new`: another conversation; `branch`: an answer that had been continued was continued in another way;
`edited`: the program put another answer in place of one that the model gave."""


@dataclass(frozen=True, slots=True)
class Step:
    """One observe-respond-act turn as it happened."""

    observation: Observation
    prompt_token_ids: tuple[int, ...]
    """Tokens put into the context since the previous response; the first step holds the whole prompt."""
    generation: Generation
    action: str
    """The action that the environment was given: the response, parsed."""
    reward: float
    changed: bool
    env_s: float = 0.0
    context_reset: bool = False
    """True where `prompt_token_ids` is the whole context again (history was cut, or holds images)."""
    invalid: bool = False
    """The environment could not read the action, or not carry it out."""
    seen: SeenContext = SeenContext()
    begins: SequenceBegin = ""
    """The reason why an agent's program began another sequence with this step; empty at all other steps."""


class Status(StrEnum):
    """The ways in which an episode ends."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ABANDONED = "abandoned"
    """Still running when the stop rule ended the rollout."""


@dataclass(frozen=True, slots=True)
class EpisodeCounts:
    """The number of episodes that were submitted, and how many of them ended in each way."""

    submitted: int
    ended: Mapping[Status, int]

    @property
    def is_all_completed(self) -> bool:
        return self.ended.get(Status.COMPLETED, 0) == self.submitted

    def __str__(self) -> str:
        """Return the account of a rollout or a run; it states the difference where one is left."""
        parts = " ".join(f"{status}={self.ended.get(status, 0)}" for status in Status)
        missing = self.submitted - sum(self.ended.values())
        return f"submitted={self.submitted} {parts}" + (f" unrecorded={missing}" if missing else "")


MAX_MESSAGE = 2000
"""Characters of what went wrong that are recorded."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why an episode has no reward."""

    kind: str
    """A class name of `rl_agent.errors`, or `TimeoutError`."""
    message: str


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt that its environment spoiled; the episode was begun again."""

    failure: Failure
    steps: int
    """Taken until then; they are not recorded."""
    duration_s: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """An episode as recorded: self-contained, one line of a shard."""

    key: EpisodeKey
    task: Task
    split: Split
    iteration: int
    status: Status
    steps: tuple[Step, ...]
    reward: float | None
    """The weighted sum of all; None unless `status` is completed."""
    system_prompt: str
    model: str
    weight_version_min: int
    weight_version_max: int
    seed: int
    started_at: float
    """Seconds since the epoch."""
    duration_s: float
    truncated: bool = False
    """Ended by a limit (steps, tokens) rather than by the environment."""
    failure: Failure | None = None
    reward_detail: dict[str, Any] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    """Named rewards, summed over the steps, before they are weighted."""
    rank: int = 0
    lost_attempts: tuple[LostAttempt, ...] = ()
    """Earlier attempts at this episode, oldest first; `failure` is that of the last one."""
    last_observation: str = ""
    """The text that the environment answered the last action with; the model did not see it."""
    schema_version: int = SCHEMA_VERSION

    # Non-finite numbers (an engine's -inf logprob) become strings: JSON has no word for them.
    __pydantic_config__ = {"ser_json_inf_nan": "strings"}  # noqa: RUF012
