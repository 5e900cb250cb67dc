"""Makes the row of plain values that the index keeps of an episode, from its line in the store. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from rl_agent.page.words import SHOWN_CHARACTERS
from rl_agent.rollout.trajectories.shard import ByteRange
from rl_agent.types import EpisodeKey, Failure, Status, Task

MAX_CHARACTERS = 16 * 2**20
"""Characters of one episode that can be searched; what is longer is not an episode of ours."""
PROMPT_CHARACTERS = 1000
"""More than are shown, for prompts may begin with the same words."""


@dataclass(frozen=True, slots=True)
class IndexedGeneration:
    """The part of a response that the index reads."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class IndexedObservation:
    """The part of an observation that the index reads."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class IndexedCompaction:
    """The part of a summary that the index reads."""

    generation: IndexedGeneration


@dataclass(frozen=True, slots=True)
class IndexedContext:
    """The part of what an engine saw that the index reads."""

    compactions: tuple[IndexedCompaction, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexedStep:
    """The part of a turn that the index reads."""

    generation: IndexedGeneration
    observation: IndexedObservation
    action: str = ""
    seen: IndexedContext = IndexedContext()


@dataclass(frozen=True, slots=True)
class IndexedEpisode:
    """The fields of `Trajectory` that the index needs; reading the others would take most of the time."""

    key: EpisodeKey
    task: Task
    status: Status
    reward: float | None
    steps: tuple[IndexedStep, ...]
    weight_version_min: int
    weight_version_max: int
    started_at: float
    duration_s: float
    truncated: bool = False
    failure: Failure | None = None
    reward_detail: dict[str, Any] = field(default_factory=dict)
    lost_attempts: tuple[Any, ...] = ()
    last_observation: str = ""


ADAPTER = TypeAdapter(IndexedEpisode)


TABLE = """
    split VARCHAR, iteration BIGINT, task_id VARCHAR, group_index BIGINT, attempt BIGINT,
    env VARCHAR, difficulty VARCHAR, status VARCHAR, reward DOUBLE, truncated BOOLEAN, turns BIGINT,
    response_tokens BIGINT, duration_s DOUBLE, started_at DOUBLE, version_min BIGINT,
    version_max BIGINT, failure VARCHAR, prompt VARCHAR, answer VARCHAR, response VARCHAR,
    file VARCHAR, begin BIGINT, size BIGINT, words VARCHAR
"""
"""Columns of the index: where the line of an episode lies, what is shown of it, and all of its words."""
SHOWN = tuple(column.split()[0] for column in TABLE.split(","))[:-1]


def row_of(episode: IndexedEpisode, split: str, iteration: int, file: str, span: ByteRange) -> dict[str, Any]:
    """Return the row of an episode whose line lies at `span` in `file`, a name without `.checkpoint`."""
    task, steps = episode.task, episode.steps
    return {
        "split": split,
        "iteration": iteration,
        "task_id": _plain(task.task_id),
        "group_index": episode.key.group,
        "attempt": episode.key.attempt,
        "env": _plain(task.env),
        "difficulty": _plain(task.difficulty),
        "status": episode.status.value,
        "reward": episode.reward,
        "truncated": episode.truncated,
        "turns": len(steps),
        "response_tokens": sum(len(step.generation.token_ids) for step in steps),
        "duration_s": episode.duration_s,
        "started_at": episode.started_at,
        "version_min": episode.weight_version_min,
        "version_max": episode.weight_version_max,
        "failure": _plain(_failure_of(episode)[:SHOWN_CHARACTERS]),
        "prompt": _plain(task.prompt[:PROMPT_CHARACTERS]),
        "answer": _plain((task.answer or "")[:SHOWN_CHARACTERS]),
        "response": _plain(steps[-1].generation.text[-SHOWN_CHARACTERS:]) if steps else "",
        "file": file,
        "begin": span.begin,
        "size": span.end - span.begin,
        "words": _plain(" ".join(_text_of(episode).lower().split())),
    }


def _text_of(episode: IndexedEpisode) -> str:
    """Return all that an episode says: its task, every turn with what came and what was done, its judge."""
    task = episode.task
    parts = [task.task_id, task.prompt, task.answer or "", _failure_of(episode), *_words_in(task.extra)]
    for step in episode.steps:
        parts += [compaction.generation.text for compaction in step.seen.compactions]
        parts += [step.observation.text, step.generation.text]
        if step.action not in step.generation.text:
            parts.append(step.action)
    parts += [episode.last_observation, *_words_in(episode.reward_detail), *_words_in(episode.lost_attempts)]
    return "\n".join(filter(None, parts))[:MAX_CHARACTERS]


def _failure_of(episode: IndexedEpisode) -> str:
    return f"{episode.failure.kind}: {episode.failure.message}" if episode.failure else ""


def _words_in(nested_value: Any) -> Iterator[str]:
    """Yield the texts in nested values, with the names of fields."""
    open_values = [nested_value]
    while open_values:
        match open_values.pop():
            case str() as text:
                yield text
            case dict() as fields:
                open_values += [*fields.values(), *fields]
            case list() | tuple() as values:
                open_values += values


def _plain(text: str) -> str:
    """Return `text` without half characters and NUL, which no column can hold."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
