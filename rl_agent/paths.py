"""Builds the name of every file and folder under a log path; nothing else does."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from rl_agent.types import Split

_PACKAGE = Path(__file__).resolve().parent
IS_INSTALLED = (_PACKAGE / "configs").is_dir()
"""A wheel has `configs/`, `scripts/` and `data/sites/` inside the package, a checkout beside it."""
PROJECT_ROOT = _PACKAGE if IS_INSTALLED else _PACKAGE.parent
CONFIG_DIR = PROJECT_ROOT / "configs"

_SHARD = re.compile(
    r"^(?:train|test)_trajectories\.jsonl\.iteration(?P<iteration>\d+)"
    r"(?:_rank_(?P<rank>\d+)(?:_part_(?P<part>\d+))?)?(?P<growing>\.checkpoint)?$"
)
_MANIFEST = re.compile(r"^(?:train|test)_trajectories\.jsonl\.iteration(?P<iteration>\d+)\.manifest\.json$")


@dataclass(frozen=True, slots=True)
class ShardName:
    """The parts of a trajectory file's name, its `.checkpoint` suffix left out."""

    iteration: int
    rank: int | None = None
    """None for the file of a run of one node."""
    part: int = 1
    """Counts the files that a rank began for one iteration."""

    @property
    def suffix(self) -> str:
        """Return what follows `iterationN`."""
        if self.rank is None:
            return ""
        return f"_rank_{self.rank}" + (f"_part_{self.part}" if self.part > 1 else "")


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Names of the files of one log path; makes no folder and touches nothing."""

    log_path: Path

    # --- trajectories ---
    def trajectory_dir(self, split: Split) -> Path:
        return self.log_path / f"{split}_trajectories"

    def shard(self, split: Split, iteration: int, *, rank: int | None = None, part: int = 1) -> Path:
        """Return a finished trajectory file of an iteration; without `rank` that of a run of one node."""
        name = ShardName(iteration, rank, part)
        return self.trajectory_dir(split) / f"{split}_trajectories.jsonl.iteration{iteration}{name.suffix}"

    def checkpoint_shard(
        self, split: Split, iteration: int, *, rank: int | None = None, part: int = 1
    ) -> Path:
        """Return the same file while it grows."""
        return growing_name(self.shard(split, iteration, rank=rank, part=part))

    def manifest(self, split: Split, iteration: int) -> Path:
        """Return the file that names the files of an iteration; it is written last."""
        shard = self.shard(split, iteration)
        return shard.with_name(shard.name + ".manifest.json")

    def shards(self, split: Split, iteration: int) -> list[Path]:
        """Return the iteration's files that are there, without `.checkpoint`, that of one node first."""
        names = {name for name, _ in self._entries(split, iteration)[0] if name.iteration == iteration}
        ordered = sorted(names, key=lambda name: (-1 if name.rank is None else name.rank, name.part))
        return [self.shard(split, iteration, rank=name.rank, part=name.part) for name in ordered]

    def iterations(self, split: Split, *, unfinished: bool = False) -> list[int]:
        """Iterations that are finished or, if asked, begun and not finished; ascending.

        Finished: there is a manifest, or a file without `.checkpoint`, which it loses after the manifest is
        written. So an iteration that lost its manifest is not collected again.
        """
        begun, finished = self._begun_and_finished(split)
        return sorted(begun - finished if unfinished else finished)

    def is_finished(self, split: Split, iteration: int) -> bool:
        """Return whether an iteration is among the finished `iterations`; the files of others are no work."""
        return iteration in self._begun_and_finished(split, iteration)[1]

    def _begun_and_finished(self, split: Split, iteration: int | None = None) -> tuple[set[int], set[int]]:
        shards, finished = self._entries(split, iteration)
        finished |= {name.iteration for name, is_growing in shards if not is_growing}
        return {name.iteration for name, _ in shards}, finished

    def _entries(
        self, split: Split, iteration: int | None = None
    ) -> tuple[list[tuple[ShardName, bool]], set[int]]:
        """Trajectory files with whether each grows, and the iterations that have a manifest.

        With `iteration` those of few others are among them.
        """
        folder, wanted = self.trajectory_dir(split), f".iteration{'' if iteration is None else iteration}"
        shards, manifests = [], set()
        for entry in os.scandir(folder) if folder.is_dir() else ():
            if wanted not in entry.name:
                continue
            if match := _SHARD.match(entry.name):
                rank = None if match["rank"] is None else int(match["rank"])
                name = ShardName(int(match["iteration"]), rank, int(match["part"] or 1))
                shards.append((name, match["growing"] is not None))
            elif match := _MANIFEST.match(entry.name):
                manifests.add(int(match["iteration"]))
        return shards, manifests

    @property
    def images(self) -> Path:
        return self.log_path / "images"

    def response_lengths(self, split: Split) -> Path:
        """Return how long responses to each task were, for the next iteration."""
        return self.trajectory_dir(split) / "response_lengths.json"

    # --- models ---
    @property
    def model_link(self) -> Path:
        """Symlink to the version that is served; absent until the first update."""
        return self.log_path / "model.pt"

    @property
    def model_record(self) -> Path:
        """Return the file that names the target of `model_link`, for a copy may lose a link."""
        return self.checkpoints / "model_link.json"

    @property
    def checkpoints(self) -> Path:
        return self.log_path / "checkpoints"

    def version_dir(self, weight_version: int) -> Path:
        return self.checkpoints / f"version-{weight_version:06d}"

    @property
    def streaming(self) -> Path:
        """Return what the streaming trainer keeps: its own checkpoints, and a model that is being written."""
        return self.checkpoints / "streaming"

    def training_dir(self, iteration: int) -> Path:
        """LLaMA-Factory's `output_dir` of an iteration; holds its checkpoint-K folders."""
        return self.checkpoints / f"training-{iteration:06d}"

    # --- one update's inputs ---
    def update_dir(self, iteration: int) -> Path:
        """Exported dataset, `dataset_info.json` and `train.yaml` of an iteration."""
        return self.log_path / "llamafactory_data" / f"iteration{iteration}"

    # --- run state ---
    def run_dir(self, run_id: str) -> Path:
        return self.log_path / "runs" / run_id

    def tasks(self, run_id: str, split: Split) -> Path:
        """Return the run's own copy of the task file of a split."""
        return self.run_dir(run_id) / "tasks" / f"{split}.jsonl"

    def begun(self, run_id: str, split: Split, iteration: int) -> Path:
        """Return what a run began an iteration with."""
        return self.run_dir(run_id) / "begun" / f"{split}-iteration{iteration}.json"

    @property
    def flags(self) -> Path:
        return self.log_path / "flags"

    @property
    def metrics(self) -> Path:
        """Return one JSON object per line: what wandb and the plots are made from."""
        return self.log_path / "metrics.jsonl"

    @property
    def curves(self) -> Path:
        """Return the numbers of `metrics` as a picture."""
        return self.log_path / "reward.png"

    @property
    def timeline(self) -> Path:
        """Return one JSON object per line: {"name", "iteration", "start", "end"} in epoch seconds."""
        return self.log_path / "timeline.jsonl"

    @property
    def wandb_run(self) -> Path:
        """Return the id of the wandb run that records this log path."""
        return self.log_path / "wandb_run.json"

    @property
    def page_index(self) -> Path:
        """Return what the page knows of the trajectories; made anew from them if it is gone."""
        return self.log_path / "page_index"

    @property
    def judge_cache(self) -> Path:
        return self.log_path / "judge_cache"


def growing_name(shard: Path) -> Path:
    """Return the name of a trajectory file while it grows."""
    return shard.with_name(shard.name + ".checkpoint")


def rank_of(shard: Path) -> int:
    """Return the rank that a trajectory file's name says; 0 for a run of one node."""
    match = _SHARD.match(shard.name)
    return int(match["rank"] or 0) if match else 0
