"""Takes over what an unfinished iteration has on the disk already, and finishes it.

The master alone does this, under a lock, before any rank is given work and after all have done theirs:

    fresh start: every file is set aside          resume: files of this run count, others are set aside
    end: manifest ─► every file that counts loses its `.checkpoint`

The lock is freed by the kernel when its holder dies, however it dies. On a shared file system it holds as far
as that file system's locks reach, and it does not fence a holder that is merely asleep; several nodes of one
run are kept apart by `cluster`, not by it.
"""

import logging
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from rl_agent.errors import ConfigError, DamagedLine, StoreError
from rl_agent.paths import RunPaths, growing_name
from rl_agent.rollout.conditions import refusal
from rl_agent.rollout.trajectories.manifest import ManifestEntry, Part, parts_of, write_manifest
from rl_agent.rollout.trajectories.shard import ShardHeader, read_header, read_undamaged
from rl_agent.system import files
from rl_agent.types import EpisodeKey, Split

_log = logging.getLogger(__name__)


@contextmanager
def sole_master(paths: RunPaths, split: Split, iteration: int) -> Iterator[None]:
    """Hold the iteration's lock. Raises StoreError if another process has it, or the iteration is over."""
    shard = paths.shard(split, iteration)
    shard.parent.mkdir(parents=True, exist_ok=True)
    lock_file = shard.with_name(shard.name + ".lock")
    lock = FileLock(lock_file, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise StoreError(f"{shard}: another process collects this iteration") from error
    try:
        if paths.is_finished(split, iteration):
            raise StoreError(f"{shard}: is complete already and is not collected again")
        yield
    finally:
        if paths.is_finished(split, iteration):  # nobody needs the lock again
            lock_file.unlink(missing_ok=True)
        lock.release()


def begun_by(paths: RunPaths, split: Split, iteration: int, run_id: str) -> dict[Path, ShardHeader]:
    """Return the files, without `.checkpoint`, that a run has begun of an unfinished iteration."""
    headers = {part.shard: _header_of(part) for part in parts_of(paths, split, iteration)}
    return {shard: header for shard, header in headers.items() if header and header.run_id == run_id}


def set_aside(paths: RunPaths, split: Split, iteration: int, *, keep: Container[Path], now: float) -> None:
    """Rename every other file of an unfinished iteration; nothing is overwritten."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for part in parts_of(paths, split, iteration):
        if part.shard not in keep:
            path = part.path
            aside = path.with_name(f"{path.name}.aside-{stamp}")
            if aside.exists():
                raise StoreError(f"{aside}: exists; {path.name} was not overwritten")
            path.rename(aside)


def check_same_sample(begun: Iterable[ShardHeader], sample_header: ShardHeader, *, may_differ: bool) -> None:
    """Refuse files begun with another sample or, unless they may, other weights. Raises ConfigError."""
    for header in begun:
        if header.sample_digest != sample_header.sample_digest:
            raise refusal(sample_header.iteration, f"another {sample_header.split} sample than that of now")
        if header.weight_version != sample_header.weight_version and not may_differ:
            raise ConfigError(
                f"--resume: iteration {sample_header.iteration} was begun with weight version"
                f" {header.weight_version}; the engine has {sample_header.weight_version}"
            )


def read_lost(shard: Path) -> tuple[list[EpisodeKey], int]:
    """Return the episodes in the file of a rank that is gone, and the bytes that hold them."""
    try:
        path = Part(shard).path
    except StoreError:
        return [], 0
    return read_undamaged(path)


def finish(paths: RunPaths, split: Split, iteration: int, entries: list[ManifestEntry]) -> None:
    """Write the manifest, then drop the suffix of the files that it names."""
    write_manifest(paths, split, iteration, entries)
    folder = paths.trajectory_dir(split)
    for entry in entries:
        growing = growing_name(folder / entry.file)
        if growing.exists():
            growing.rename(folder / entry.file)
    files.sync(folder)


def _header_of(part: Part) -> ShardHeader | None:
    """Read a header; None for a file that holds none yet, and for one whose header is damaged."""
    path = part.path
    try:
        return read_header(path) if path.stat().st_size else None
    except DamagedLine as damage:
        _log.warning("%s; the file does not count, its episodes are run again", damage)
        return None
