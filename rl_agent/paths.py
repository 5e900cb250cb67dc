"""Where everything lives under a log path. The only place that builds these names."""

import re
from dataclasses import dataclass
from pathlib import Path

from rl_agent.types import Split

PROJECT_ROOT = Path(__file__).resolve().parent.parent
CONFIG_DIR = PROJECT_ROOT / "configs"

_SHARD = re.compile(r"^(train|test)_trajectories\.jsonl\.iteration(\d+)(\.checkpoint)?$")


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Names of the files of one log path; makes no folder and touches nothing."""

    log_path: Path

    # --- trajectories ---
    def trajectory_dir(self, split: Split) -> Path:
        return self.log_path / f"{split}_trajectories"

    def shard(self, split: Split, iteration: int) -> Path:
        """The finished trajectories of an iteration."""
        return self.trajectory_dir(split) / f"{split}_trajectories.jsonl.iteration{iteration}"

    def checkpoint_shard(self, split: Split, iteration: int) -> Path:
        """The same file while it grows."""
        shard = self.shard(split, iteration)
        return shard.with_name(shard.name + ".checkpoint")

    def iterations(self, split: Split, *, unfinished: bool = False) -> list[int]:
        """Iterations that have a finished (or, if asked, a growing) shard, ascending."""
        folder = self.trajectory_dir(split)
        names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
        found = (_SHARD.match(name) for name in names)
        return sorted(int(m[2]) for m in found if m and bool(m[3]) == unfinished)

    @property
    def images(self) -> Path:
        return self.log_path / "images"

    # --- models ---
    @property
    def model_link(self) -> Path:
        """Symlink to the version that is served; absent until the first update."""
        return self.log_path / "model.pt"

    @property
    def checkpoints(self) -> Path:
        return self.log_path / "checkpoints"

    def version_dir(self, weight_version: int) -> Path:
        return self.checkpoints / f"version-{weight_version:06d}"

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

    @property
    def flags(self) -> Path:
        return self.log_path / "flags"

    @property
    def metrics(self) -> Path:
        """One JSON object a line: what wandb and the plots are made from."""
        return self.log_path / "metrics.jsonl"

    @property
    def timeline(self) -> Path:
        """One JSON object a line: {"name", "iteration", "start", "end"} in epoch seconds."""
        return self.log_path / "timeline.jsonl"

    @property
    def judge_cache(self) -> Path:
        return self.log_path / "judge_cache"
