"""Saves all that a trainer needs to go on as if nothing had happened, after every few steps.

    step-7.tmp/ ── tensors/, rank-<r>.json, groups.bin, state.json ── fsync ──► step-7/ ──► older ones removed

Tensors are written by torch.distributed.checkpoint as safetensors, each rank its own part, and can be read by
any number of ranks; nothing here is pickled. In the background, a snapshot in host memory is written while
the next step runs; a later save, or `wait`, waits for it and raises what it raised. The snapshot's memory is
kept for the next one: taking it anew costs several times what the copy does. A folder that is not `.tmp` is
whole. `state.json` has the digests of all other files and its own: a checkpoint that differs from what was
written is set aside as `damaged-step-7/`, and training goes on from the one before.
"""

import errno
import json
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from rl_agent.errors import ConfigError, StoreError
from rl_agent.served_model.digest import digest_files
from rl_agent.system.files import put_in_place, remove, sync_tree
from rl_agent.trainer.grpo.checkpoint.progress import (
    FILES,
    TrainerProgress,
    check_kind,
    damage,
    read_progress,
    write_progress,
)
from rl_agent.trainer.grpo.checkpoint.states import note_served, saved_steps
from rl_agent.trainer.grpo.model.parallel import Ranks, local
from rl_agent.trainer.grpo.settings import TrainerSettings
from rl_agent.trainer.grpo.step.optimizer import AdamW
from rl_agent.trainer.grpo.step.start_weights import StartWeights

_TENSORS = "tensors"
_log = logging.getLogger(__name__)
_NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


class Checkpoints:
    """The checkpoints of one trainer; every rank has one and calls it alike."""

    def __init__(
        self, settings: TrainerSettings, optimizer: AdamW, start: StartWeights, ranks: Ranks
    ) -> None:
        self._folder = settings.output / "checkpoints"
        self._settings = settings.checkpoint
        self._lora = settings.lora
        self._trains_tower = any(".visual." in name for name, _ in optimizer.named())
        self._optimizer = optimizer
        self._start = start
        self._ranks = ranks
        # Of its own: the writer's collectives must not mix with those of the next step.
        self._group = dist.new_group(backend="gloo")
        # Snapshots live in host memory, whatever device the weights are on.
        self._mesh = init_device_mesh("cpu", tuple(ranks.mesh.shape), mesh_dim_names=("replicate", "shard"))
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._snapshot: dict[str, Tensor] = {}

    def save(self, progress: TrainerProgress) -> None:
        """Write a checkpoint while the next step runs, from a copy in host memory."""
        self.wait()
        tensors = self._tensors({name: self._copied(name, part) for name, part in self._parts()})
        rng: dict[str, Any] = {"torch": torch.get_rng_state().numpy().tobytes().hex()}
        if self._ranks.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
        self._pending = self._writer.submit(self._write, tensors, rng, progress)

    def after_save(self, work: Callable[[], None]) -> None:
        """Do `work` once the last save is on disk, before the next begins; `wait` raises what it raises."""
        saved = self._pending

        def wait_and_work() -> None:
            if saved is not None:
                saved.result()
            work()

        self._pending = self._writer.submit(wait_and_work)

    def wait(self) -> None:
        """Wait until the last save is on disk, and what was to follow it is done; raises what they raised."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def folder(self, step: int) -> Path:
        return self._folder / f"step-{step}"

    def load(self, start: Path | None = None, *, served: str = "") -> TrainerProgress | None:
        """Restore the newest checkpoint into policy, optimizer and random numbers.

        One that is damaged is set aside for the one before, which from then on belongs to the model `served`.
        Where there is none, that of the folder `start`; None if there is neither. Raises ConfigError if it is
        of other weights, StoreError if all are damaged.
        """
        folder = self._newest_whole(served) or start
        if folder is None:
            return None
        if folder == start and self._is_damaged(folder):
            raise StoreError(
                f"{folder}: is damaged; `rollback` to the version before, or remove this folder to go on from"
                " its model with a fresh optimizer"
            )
        check_kind(folder, self._lora, trains_tower=self._trains_tower)
        progress = read_progress(folder)
        if progress.has_start:
            self._start.keep()
        tensors = self._tensors({name: torch.empty_like(part, device="cpu") for name, part in self._parts()})
        dcp.load(
            tensors,
            storage_reader=HuggingFaceStorageReader(str(folder / _TENSORS)),
            process_group=self._group,
        )
        for name, target in self._parts():
            target.copy_(local(tensors[name]))
        self._restore_rng(folder / f"rank-{self._ranks.rank}.json")
        self._optimizer.steps, self._optimizer.updates = progress.steps, progress.updates
        return progress

    def _newest_whole(self, served: str) -> Path | None:
        """Find the newest checkpoint that is as it was written; None where there was none."""
        damaged: list[Path] = []
        while (step := self._newest()) is not None:
            folder = self.folder(step)
            if not self._is_damaged(folder):
                if damaged and self._ranks.rank == 0:
                    note_served(folder, served)
                    _log.warning("training goes on from %s", folder)
                return folder
            damaged.append(folder.with_name(f"damaged-{folder.name}"))
            if self._ranks.rank == 0:
                remove(damaged[-1])
                folder.rename(damaged[-1])
                _log.warning("%s: the damaged checkpoint lies here and can be deleted", damaged[-1])
        if damaged:
            raise StoreError(f"{damaged[-1]}: is damaged, and there is no checkpoint before it")
        return None

    def _newest(self) -> int | None:
        """Find the step of the newest checkpoint, as rank 0 sees it; None where there is none."""
        newest = max(self._steps(), default=-1) if self._ranks.rank == 0 else -1
        step = int(self._ranks.bytes_of_first(str(newest).encode()) or -1)
        return step if step >= 0 else None

    def _is_damaged(self, folder: Path) -> bool:
        """Check a checkpoint; collective: each rank reads its share of the files."""
        reason = damage(folder, self._ranks.rank, self._ranks.world_size)
        if reason:
            _log.error("%s", reason)
        return self._ranks.any_of_world(bool(reason))

    def close(self) -> None:
        """Wait for what is being written, and give the writer back."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def _parts(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's parts of all tensors."""
        for name, parameter in self._optimizer.named():
            first, second = self._optimizer.moments[name]
            yield f"weight.{name}", local(parameter.detach())
            yield f"first.{name}", first
            yield f"second.{name}", second
        for name, part in self._start.parts().items():
            yield f"start.{name}", part

    def _copied(self, name: str, part: Tensor) -> Tensor:
        if name not in self._snapshot:
            self._snapshot[name] = torch.empty_like(part, device="cpu")
        return self._snapshot[name].copy_(part)

    def _tensors(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Make sharded tensors of the parts in host memory."""
        wholes, mesh = dict(self._optimizer.named()), self._mesh["shard"]
        tensors: dict[str, Tensor] = {}
        for name, part in parts.items():
            whole = wholes[name.split(".", 1)[1]]
            tensors[name] = DTensor.from_local(
                part, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
            )
        return tensors

    def _write(self, tensors: dict[str, Tensor], rng: dict[str, Any], progress: TrainerProgress) -> None:
        """Raises ConfigError where the disk is full: to start again at once would not help."""
        try:
            self._write_folder(tensors, rng, progress)
        except (OSError, dcp.CheckpointException) as error:
            if not any(words in str(error) for words in _NO_ROOM):
                raise
            raise ConfigError(
                f"{self._folder}: no room for the checkpoint of step {progress.steps}; make some and resume"
            ) from error

    def _write_folder(
        self, tensors: dict[str, Tensor], rng: dict[str, Any], progress: TrainerProgress
    ) -> None:
        final = self._folder / f"step-{progress.steps}"
        growing = final.with_name(final.name + ".tmp")
        if self._ranks.rank == 0:
            remove(growing)
            (growing / _TENSORS).mkdir(parents=True)
        dist.barrier(self._group)
        writer = HuggingFaceStorageWriter(str(growing / _TENSORS), save_distributed=True)
        dcp.save(tensors, storage_writer=writer, process_group=self._group)
        own = digest_files(
            sorted((growing / _TENSORS).glob(f"shard-{self._ranks.rank + 1:05}-*")), below=growing
        )
        digests = {FILES: {name: asdict(digest) for name, digest in own.items()}}
        (growing / f"rank-{self._ranks.rank}.json").write_text(json.dumps(rng | digests))
        dist.barrier(self._group)
        if self._ranks.is_first_of_node:
            sync_tree(growing)  # what another node has in its cache only that node can make durable
        dist.barrier(self._group)
        if self._ranks.rank == 0:
            write_progress(growing, progress, self._lora, trains_tower=self._trains_tower)
            sync_tree(growing)
            put_in_place(growing, final)
            for step in sorted(self._steps())[: -self._settings.keep]:
                remove(self._folder / f"step-{step}")

    def _steps(self) -> list[int]:
        return list(saved_steps(self._folder))

    def _restore_rng(self, file: Path) -> None:
        if not file.exists():
            return  # more ranks than before: the new ones go on with their own seed
        states = {
            name: torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
            for name, state in json.loads(file.read_bytes()).items()
            if name != FILES
        }
        torch.set_rng_state(states["torch"])
        if "cuda" in states and self._ranks.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"])
