"""Makes the row of plain values that the index keeps of an episode, from its line in the store. Pure."""

from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import TypeAdapter

from rl_agent.types import EpisodeKey, Failure, Status, Task

TEXT_CHARACTERS = 2000
"""Of an episode's text that can be searched: its beginning and, of a longer one, its end."""
SHOWN_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class IndexedGeneration:
    """The part of a response that the index reads."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class IndexedObservation:
    """The part of an observation that the index reads."""

    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexedStep:
    """The part of a turn that the index reads."""

    generation: IndexedGeneration
    observation: IndexedObservation


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
    rank: int = 0
    lost_attempts: tuple[Any, ...] = ()


ADAPTER = TypeAdapter(IndexedEpisode)


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """A row of the index; the names and types of its columns are these."""

    split: str
    iteration: int
    task_id: str
    group_index: int
    attempt: int
    rank: int
    env: str
    difficulty: str
    status: str
    reward: float | None
    truncated: bool
    turns: int
    response_tokens: int
    images: int
    duration_s: float
    started_at: float
    version_min: int
    version_max: int
    lost_attempts: int
    failure: str
    prompt: str
    response: str
    text: str
    """In lower case: what a search looks through."""
    file: str
    """Name of the trajectory file, without `.checkpoint`."""
    begin: int
    """Of its line, in bytes."""
    size: int


_SQL = {str: "VARCHAR", int: "BIGINT", bool: "BOOLEAN", float: "DOUBLE", float | None: "DOUBLE"}
COLUMNS = tuple(one.name for one in fields(EpisodeRow))
TABLE = ", ".join(f"{one.name} {_SQL[one.type]}" for one in fields(EpisodeRow))  # type: ignore[index]


def row_of(
    episode: IndexedEpisode, split: str, iteration: int, file: str, begin: int, size: int
) -> EpisodeRow:
    """Return the row of an episode whose line lies at `begin` in `file`."""
    task, failure = episode.task, episode.failure
    reason = f"{failure.kind}: {failure.message}" if failure else ""
    responses = [step.generation.text for step in episode.steps]
    judged = episode.reward_detail.get("reason")
    words = [task.task_id, task.prompt, task.answer or "", reason, judged if isinstance(judged, str) else ""]
    return EpisodeRow(
        split=split,
        iteration=iteration,
        task_id=_plain(task.task_id),
        group_index=episode.key.group,
        attempt=episode.key.attempt,
        rank=episode.rank,
        env=_plain(task.env),
        difficulty=_plain(task.difficulty),
        status=episode.status.value,
        reward=episode.reward,
        truncated=episode.truncated,
        turns=len(episode.steps),
        response_tokens=sum(len(step.generation.token_ids) for step in episode.steps),
        images=sum(len(step.observation.images) for step in episode.steps),
        duration_s=episode.duration_s,
        started_at=episode.started_at,
        version_min=episode.weight_version_min,
        version_max=episode.weight_version_max,
        lost_attempts=len(episode.lost_attempts),
        failure=_plain(reason[:SHOWN_CHARACTERS]),
        prompt=_plain(task.prompt[:SHOWN_CHARACTERS]),
        response=_plain(responses[-1][-SHOWN_CHARACTERS:]) if responses else "",
        text=_plain(_searched(words, responses)).lower(),
        file=file,
        begin=begin,
        size=size,
    )


def _searched(words: list[str], responses: list[str]) -> str:
    """Return the text that is searched: a beginning of each, and the end of what is too long."""
    quarter = TEXT_CHARACTERS // 4
    begin = "\n".join(word[:quarter] for word in words if word)[: 2 * quarter]
    answer = "\n".join(responses) if len(responses) < 64 else "\n".join(responses[:8] + responses[-56:])
    if len(answer) > 2 * quarter:
        answer = f"{answer[:quarter]}\n{answer[-quarter:]}"
    return f"{begin}\n{answer}"


def _plain(text: str) -> str:
    """Return `text` without half characters and NUL, which no column can hold."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
