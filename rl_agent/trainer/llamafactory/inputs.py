"""Records the inputs of an update in `update.json`, which is written after all other inputs.

It names the number of nodes that train and the digest of every file that they read. So a node waits until
the shared folder shows it the files of this update, and never trains on older ones.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rl_agent.errors import ConfigError, DeadlineError
from rl_agent.served_model.digest import FileDigest, digest_files, first_difference
from rl_agent.system.files import remove, write_whole

DATASET_FOLDER = "dataset"
SUMMARY_FILE = "update.json"
TRAIN_FILE = "train.yaml"
DEEPSPEED_FILE = "deepspeed.json"
"""Written only if DeepSpeed has to load shards of another number of processes."""

_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class UpdateSummary:
    """The inputs of one update in numbers."""

    samples: int
    validation_samples: int
    candidates: int
    iterations: tuple[int, ...]
    """Training iterations that were read."""
    tasks: int
    """Number of tasks that the samples belong to."""
    left_out: dict[str, int]
    """Number of steps that could not be trained on as they were seen, by reason."""
    learning_rate: float
    started_from: str
    """The model that was served."""
    steps_before: int
    """Optimizer steps of earlier updates that this one continues."""
    first_step: int
    """Trainer's step counter at the beginning; 0 if the learning rate's schedule restarts."""
    new_steps: int
    nodes: int
    is_trained: bool
    """True if the training had reached its end already, so that only publishing is left."""
    files: dict[str, FileDigest]

    def is_of(self, model: str, dataset: Mapping[str, FileDigest]) -> bool:
        """Return whether the update is one of `model` on the samples of `dataset`."""
        return self.started_from == model and _samples(self.files) == _samples(dataset)


def _samples(files: Mapping[str, FileDigest]) -> dict[str, FileDigest]:
    return {name: digest for name, digest in files.items() if name.endswith(".arrow")}


_PREPARED = TypeAdapter(UpdateSummary)


def digest_dataset(folder: Path) -> dict[str, FileDigest]:
    """Digest the files of the dataset in an update's folder."""
    return digest_files(sorted((folder / DATASET_FOLDER).rglob("*.*")), below=folder)


def digest_settings(folder: Path) -> dict[str, FileDigest]:
    """Digest the other files that the training reads from an update's folder."""
    files = (folder / name for name in (TRAIN_FILE, DEEPSPEED_FILE))
    return digest_files([file for file in files if file.exists()], below=folder)


def write_summary(folder: Path, summary: UpdateSummary) -> None:
    """Write `update.json`."""
    write_whole(folder / SUMMARY_FILE, json.dumps(asdict(summary), indent=2) + "\n")


def read_summary(folder: Path) -> UpdateSummary:
    """Read `update.json`. Raises ConfigError if no update was prepared."""
    try:
        return _PREPARED.validate_json((folder / SUMMARY_FILE).read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder / SUMMARY_FILE}: there is no such file; run prepare-update first"
        ) from error
    except ValidationError as error:
        raise ConfigError(f"{folder / SUMMARY_FILE}: cannot be read; run prepare-update again") from error


def withdraw_summary(folder: Path) -> UpdateSummary | None:
    """Remove the `update.json` of an earlier preparation and return it; None if none can be read."""
    try:
        return read_summary(folder)
    except ConfigError:
        return None
    finally:
        remove(folder / SUMMARY_FILE)


def await_inputs(
    folder: Path,
    nodes: int,
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
    on_wait: Callable[[str], object] = print,
) -> None:
    """Wait until this node sees the inputs of a training on `nodes` nodes.

    `on_wait` is called once with what is awaited. Raises DeadlineError that says what is still missing.
    """
    started = clock()
    has_told = False
    while reason := _difference(folder, nodes):
        if clock() - started >= timeout_s:
            raise DeadlineError(f"{reason}; waited {timeout_s:.0f} s for the inputs of the training")
        if not has_told:
            on_wait(f"{reason}; waiting up to {timeout_s:.0f} s for the inputs of the training")
            has_told = True
        sleep(_POLL_S)


def _difference(folder: Path, nodes: int) -> str:
    try:
        summary = read_summary(folder)
    except ConfigError as error:
        return str(error)
    if summary.nodes != nodes:
        return f"{folder / SUMMARY_FILE}: was prepared for --nodes {summary.nodes}, not {nodes}"
    return first_difference(folder, summary.files)
