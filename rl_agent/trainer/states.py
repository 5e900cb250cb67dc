"""Where the checkpoints of a trainer lie, and what they say without their tensors being read."""

import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_agent.files import write_whole
from rl_agent.paths import RunPaths
from rl_agent.update import versions

STATE = "state.json"
PUBLISHED = "published.json"
_STEP = re.compile(r"^step-(\d+)$")


def saved_steps(folder: Path) -> dict[int, Path]:
    """The whole checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return {}
    found = {int(match[1]): entry for entry in folder.iterdir() if (match := _STEP.match(entry.name))}
    return dict(sorted(found.items()))


def newest_served(folder: Path) -> str | None:
    """Name of the model that the newest checkpoint builds on; None where there is no checkpoint."""
    state = _newest_state(folder)
    return None if state is None else str(state["served"])


def note_served(checkpoint: Path, served: str) -> None:
    """The model that was made from this checkpoint is served now."""
    state = json.loads((checkpoint / STATE).read_bytes()) | {"served": served}
    write_whole(checkpoint / STATE, json.dumps(state))


def trained_iteration(streaming: Path) -> int:
    """The last iteration that the newest checkpoint was trained on to its end; 0 where there is none."""
    state = _newest_state(streaming / "checkpoints")
    return 0 if state is None else int(state["iteration"])


def _newest_state(folder: Path) -> dict[str, Any] | None:
    steps = saved_steps(folder)
    if not steps:
        return None
    state: dict[str, Any] = json.loads((steps[max(steps)] / STATE).read_bytes())
    return state


@dataclass(frozen=True, slots=True)
class Published:
    """Which weight versions engines were told of."""

    newest: int = 0
    """By any run."""
    run_id: str = ""
    made_in: dict[int, int | None] = field(default_factory=dict)
    """Those of this run, with the iteration that made each; None: one that was given up."""

    def of_run(self, run_id: str) -> dict[int, int | None]:
        """Another run's iterations have nothing to do with this one's."""
        return self.made_in if run_id == self.run_id else {}


def note_published(streaming: Path, run_id: str, weight_version: int, iteration: int) -> None:
    """Engines are about to be told of this version; durable, so that its number is not used again."""
    before = read_published(streaming)
    made_in = before.of_run(run_id) | {weight_version: iteration}
    _write_published(streaming, Published(max(before.newest, weight_version), run_id, made_in))


def give_up_published(streaming: Path, after: int) -> None:
    """Versions after `after` are of a training that was set back: what they sampled is not trained on."""
    before = read_published(streaming)
    made_in = {version: None if version > after else made for version, made in before.made_in.items()}
    _write_published(streaming, replace(before, made_in=made_in))


def read_published(streaming: Path) -> Published:
    try:
        content = json.loads((streaming / PUBLISHED).read_bytes())
    except FileNotFoundError:
        return Published()
    made_in = {int(version): iteration for version, iteration in content.pop("made_in").items()}
    return Published(**content, made_in=made_in)


def next_number(paths: RunPaths) -> int:
    """No version before it is free: neither one of a model nor one that only engines were told of."""
    return max(versions.next_version(paths), read_published(paths.streaming).newest + 1)


def _write_published(streaming: Path, published: Published) -> None:
    streaming.mkdir(parents=True, exist_ok=True)
    write_whole(streaming / PUBLISHED, json.dumps(asdict(published)))


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a streaming trainer is."""

    pid: int
    iteration: int
    """The last one that it has trained on to its end and published."""
    weight_version: int

    @classmethod
    def read(cls, path: Path) -> "StreamProgress | None":
        try:
            return cls(**json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
