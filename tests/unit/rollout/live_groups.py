"""Files of an iteration that grow, and the groups that are read from them."""

from dataclasses import replace
from pathlib import Path

from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import to_line
from rl_agent.rollout.trajectories.manifest import ManifestEntry, write_manifest
from rl_agent.rollout.trajectories.shard import start_shard
from rl_agent.trainer.grpo.data.live import LiveIteration
from rl_agent.types import Status, Trajectory
from tests.unit.rollout.trajectories_made import make_header, make_trajectory

GROUP_SIZE = 3


def episode(group: int, attempt: int, *, status: Status = Status.COMPLETED) -> Trajectory:
    return make_trajectory(group, attempt=attempt, status=status)


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def live(log_path: Path, *, clock: Clock | None = None, **changes) -> LiveIteration:
    clock = clock or Clock()
    waits = {"silence_timeout_s": 100.0, "clock": clock, "sleep": clock.sleep}
    return LiveIteration(RunPaths(log_path), 1, run_id="run", group_size=GROUP_SIZE, **waits | changes)


def begin(log_path: Path, rank: int | None = None, *, run_id: str = "run") -> Path:
    growing = RunPaths(log_path).checkpoint_shard("train", 1, rank=rank)
    start_shard(growing, replace(make_header(), run_id=run_id))
    return growing


def write(file: Path, *episodes: Trajectory, torn: bytes = b"") -> None:
    with file.open("ab") as opened:
        opened.write(b"".join(map(to_line, episodes)) + torn)


def finish(log_path: Path, *files: Path, cut: dict[Path, int] | None = None, episodes: int = 0) -> None:
    cut = cut or {}
    entries = [
        ManifestEntry(file=f.name.removesuffix(".checkpoint"), rank=n, bytes=cut.get(f), episodes=episodes)
        for n, f in enumerate(files)
    ]
    write_manifest(RunPaths(log_path), "train", 1, entries)


def keys(groups) -> list[str]:
    return [group.key for group in groups]


def drain(source: LiveIteration) -> list[str]:
    """All that is left until the iteration is over."""
    rest: list[str] = []
    while (groups := source.take(2)) is not None:
        rest += keys(groups)
    return rest
