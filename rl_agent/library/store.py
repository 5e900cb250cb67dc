"""Keeps what is collected in a folder, in the form of a run's log path, and goes on with it.

nothing ─► growing, one file ─► complete: read and never collected again
              └ the same call goes on with it; one with other tasks or settings is refused
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_agent.errors import ConfigError
from rl_agent.paths import RunPaths
from rl_agent.rollout import conditions, takeover
from rl_agent.rollout.rank_shard import RankShard
from rl_agent.rollout.sample import Sample
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import ManifestEntry, Part, ReadLosses, parts_of, read_parts
from rl_agent.rollout.trajectories.shard import read_header, whole_bytes
from rl_agent.types import Split, Trajectory

RUN_ID = "library"
"""The run that the files of a collection name."""
SPLIT: Split = "train"
ITERATION = 1


class EpisodeStore:
    """One folder's collection; its lock is `takeover.sole_master`. Raises ConfigError for no folder."""

    def __init__(self, folder: Path, sample: Sample, settings: dict[str, Any]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"store={folder}: {error.strerror}; name a folder") from error
        self.paths = RunPaths(folder)
        self._sample = sample
        self._settings = settings
        self._damaged = 0

    @property
    def is_complete(self) -> bool:
        return self.paths.is_finished(SPLIT, ITERATION)

    def recorded(self) -> Iterator[Trajectory]:
        """Yield the episodes on the disk. Raises ConfigError for those of other tasks or settings."""
        parts = parts_of(self.paths, SPLIT, ITERATION)
        if empty := [part for part in parts if not part.path.stat().st_size]:  # a kill came before the header
            parts = [part for part in parts if part not in empty]
            takeover.set_aside(
                self.paths, SPLIT, ITERATION, keep=[part.shard for part in parts], now=time.time()
            )
        begun = conditions.read(self.paths, RUN_ID, SPLIT, ITERATION) if parts else None
        if begun is not None and (change := conditions.first_change(begun, self._settings)):
            raise self._refusal(f"was begun with {change}")
        for part in parts:
            header = read_header(part.path)
            if header.run_id != RUN_ID or header.sample_digest != self._sample.digest:
                raise self._refusal("holds episodes of other tasks")
        losses = ReadLosses(parts)
        yield from read_parts(parts, TRAJECTORY, losses)
        self._damaged = losses.damaged

    async def go_on(self, shard: RankShard, *, episodes: int) -> None:
        """Let `shard` append to what is on the disk, which was read before and holds so many episodes."""
        file = self.paths.shard(SPLIT, ITERATION)
        if file in self.paths.shards(SPLIT, ITERATION):
            await shard.resume(file, episodes=episodes)
        else:
            conditions.write(self.paths, RUN_ID, SPLIT, ITERATION, self._settings)

    async def finish(self, shard: RankShard) -> None:
        """Complete the collection: all its episodes are recorded."""
        await shard.close()
        assert shard.shard is not None
        entry = ManifestEntry(
            file=shard.shard.name,
            rank=0,
            bytes=whole_bytes(Part(shard.shard).path),
            episodes=shard.episodes,
            damaged=self._damaged,
        )
        takeover.finish(self.paths, SPLIT, ITERATION, [entry])

    def _refusal(self, reason: str) -> ConfigError:
        return ConfigError(f"store={self.paths.log_path}: {reason}; name another folder")
