"""Everything a trainer needs to go on as if nothing had happened, on disk after every few steps.

    step-7.tmp/ ── tensors/, rank-<r>.json, groups.bin, state.json ── fsync ──► step-7/ ──► older ones removed

Tensors are written by torch.distributed.checkpoint as safetensors, each rank its own part, and can be read by
any number of ranks; nothing here is pickled. In the background, a snapshot in host memory is written while
the next step runs; a later save, or `wait`, waits for it and raises what it raised. The snapshot's memory is
kept for the next one: taking it anew costs several times what the copy does. A folder that is not `.tmp` is
whole.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from rl_agent.errors import ConfigError
from rl_agent.files import put_in_place, remove, sync_tree
from rl_agent.grpo_config import LoraSettings
from rl_agent.trainer.group_codec import decode, encode
from rl_agent.trainer.optimizer import AdamW
from rl_agent.trainer.parallel import Ranks, local
from rl_agent.trainer.policy import Policy
from rl_agent.trainer.samples import Group
from rl_agent.trainer.settings import CheckpointSettings
from rl_agent.trainer.start_weights import StartWeights
from rl_agent.trainer.states import STATE, saved_steps
from rl_agent.trainer.window import Learnt

_NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


@dataclass(frozen=True, slots=True)
class Progress:
    """What is no tensor: steps made, and what became of the groups."""

    steps: int
    updates: int
    """Steps that were not skipped: what the moments' bias is corrected by."""
    version: int
    """Of the weights."""
    iteration: int
    """The last one that was trained on to its end; 0: none."""
    served: str
    """Name of the model that this training began with or put at `model.pt` last; empty: the base model."""
    consumed: frozenset[str]
    buffered: tuple[Group, ...]
    steps_of_iteration: int = 0
    """That are done, of the iteration that is trained on."""
    run_id: str = ""
    """Of the run whose groups these are."""
    windows: Mapping[int, Learnt] = field(default_factory=dict)
    """What was learnt about windows of an engine that shares the devices, by the number of other engines."""
    updates_after: Mapping[int, int] = field(default_factory=dict)
    """By the end of each of the last iterations, in all."""
    has_start: bool = False
    """The weights that the iteration began with are among the tensors."""


def read_progress(folder: Path) -> Progress:
    """What a checkpoint says beside its tensors."""
    state = json.loads((folder / STATE).read_bytes())
    state.pop("lora", None)
    buffered = tuple(decode((folder / "groups.bin").read_bytes()))
    windows = {int(others): Learnt(**learnt) for others, learnt in state.pop("windows", {}).items()}
    consumed = frozenset(state.pop("consumed"))
    state.setdefault("updates", state["steps"])  # a release before this one corrected by all steps
    after = {int(iteration): updates for iteration, updates in state.pop("updates_after", {}).items()}
    return Progress(**state, consumed=consumed, buffered=buffered, windows=windows, updates_after=after)


def check_kind(folder: Path, lora: LoraSettings) -> None:
    """Raises ConfigError if a checkpoint is of other trained weights: of all, or of another adapter."""
    saved = json.loads((folder / STATE).read_bytes()).get("lora", {"rank": None})
    if saved["rank"] is None is lora.rank:
        return
    if saved != lora.model_dump(mode="json"):
        raise ConfigError(f"{folder}: was made with trainer.lora={saved}; go on with that, or begin anew")


def _write_progress(folder: Path, progress: Progress, lora: LoraSettings) -> None:
    (folder / "groups.bin").write_bytes(encode(progress.buffered))
    state = {
        "steps": progress.steps,
        "updates": progress.updates,
        "version": progress.version,
        "iteration": progress.iteration,
        "served": progress.served,
        "consumed": sorted(progress.consumed),
        "steps_of_iteration": progress.steps_of_iteration,
        "run_id": progress.run_id,
        "windows": {others: asdict(learnt) for others, learnt in progress.windows.items()},
        "updates_after": dict(progress.updates_after),
        "has_start": progress.has_start,
        "lora": lora.model_dump(mode="json"),
    }
    (folder / STATE).write_text(json.dumps(state))


def _on_cpu(name: str, part: Tensor) -> Tensor:
    return part.to("cpu")


def _like(name: str, part: Tensor) -> Tensor:
    return torch.empty_like(part, device="cpu")


class Checkpoints:
    """The checkpoints of one trainer; every rank has one and calls it alike."""

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        optimizer: AdamW,
        start: StartWeights,
        ranks: Ranks,
        settings: CheckpointSettings,
        lora: LoraSettings,
    ) -> None:
        self._folder = folder
        self._policy = policy
        self._optimizer = optimizer
        self._start = start
        self._ranks = ranks
        self._settings = settings
        self._lora = lora
        # Of its own: the writer's collectives must not mix with those of the next step.
        self._group = dist.new_group(backend="gloo")
        # Snapshots live in host memory, whatever device the weights are on.
        self._mesh = init_device_mesh("cpu", tuple(ranks.mesh.shape), mesh_dim_names=("replicate", "shard"))
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._snapshot: dict[str, Tensor] = {}

    def save(self, progress: Progress) -> None:
        """Write a checkpoint, in the background if the settings say so."""
        self.wait()
        tensors = self._tensors(self._copied if self._settings.in_background else _on_cpu)
        rng = {"torch": torch.get_rng_state().numpy().tobytes().hex()}
        if self._ranks.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
        self._pending = self._writer.submit(self._write, tensors, json.dumps(rng), progress)
        if not self._settings.in_background:
            self.wait()

    def wait(self) -> None:
        """Until the last save is on disk; raises what it raised."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def folder(self, step: int) -> Path:
        return self._folder / f"step-{step}"

    def load(self, start: Path | None = None) -> Progress | None:
        """Restore the newest checkpoint into policy, optimizer and random numbers.

        Where there is none, that of the folder `start`; None if there is neither. Raises ConfigError if it is
        of other weights.
        """
        newest = max(self._steps(), default=-1) if self._ranks.rank == 0 else -1
        step = int(self._ranks.bytes_of_first(str(newest).encode()) or -1)
        folder = self.folder(step) if step >= 0 else start
        if folder is None:
            return None
        check_kind(folder, self._lora)
        progress = read_progress(folder)
        if progress.has_start:
            self._start.keep()
        tensors = self._tensors(_like)
        dcp.load(
            tensors,
            storage_reader=HuggingFaceStorageReader(str(folder / "tensors")),
            process_group=self._group,
        )
        for name, target in self._parts():
            target.copy_(local(tensors[name]))
        self._restore_rng(folder / f"rank-{self._ranks.rank}.json")
        self._optimizer.steps, self._optimizer.updates = progress.steps, progress.updates
        return progress

    def close(self) -> None:
        """Wait for what is being written, and give the writer back."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def _parts(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's parts of all that is a tensor."""
        for name, parameter in self._optimizer.named():
            first, second = self._optimizer.moments[name]
            yield f"weight.{name}", local(parameter.detach())
            yield f"first.{name}", first
            yield f"second.{name}", second
        for name, part in self._start.parts().items():
            yield f"start.{name}", part

    def _copied(self, name: str, part: Tensor) -> Tensor:
        if name not in self._snapshot:
            self._snapshot[name] = _like(name, part)
        return self._snapshot[name].copy_(part)

    def _tensors(self, in_host_memory: Callable[[str, Tensor], Tensor]) -> dict[str, Tensor]:
        shapes = dict(self._optimizer.named())
        tensors: dict[str, Tensor] = {}
        for name, part in self._parts():
            whole = shapes[name.split(".", 1)[1]]
            tensors[name] = DTensor.from_local(
                in_host_memory(name, part),
                self._mesh["shard"],
                [Shard(0)],
                run_check=False,
                shape=whole.shape,
                stride=whole.stride(),
            )
        return tensors

    def _write(self, tensors: dict[str, Tensor], rng: str, progress: Progress) -> None:
        """Raises ConfigError where the disk is full: to start again at once would not help."""
        try:
            self._write_folder(tensors, rng, progress)
        except (OSError, dcp.CheckpointException) as error:
            if not any(words in str(error) for words in _NO_ROOM):
                raise
            raise ConfigError(
                f"{self._folder}: no room for the checkpoint of step {progress.steps}; make some and resume"
            ) from error

    def _write_folder(self, tensors: dict[str, Tensor], rng: str, progress: Progress) -> None:
        final = self._folder / f"step-{progress.steps}"
        growing = final.with_name(final.name + ".tmp")
        if self._ranks.rank == 0:
            remove(growing)
            (growing / "tensors").mkdir(parents=True)
        dist.barrier(self._group)
        (growing / f"rank-{self._ranks.rank}.json").write_text(rng)
        writer = HuggingFaceStorageWriter(str(growing / "tensors"), save_distributed=True)
        dcp.save(tensors, storage_writer=writer, process_group=self._group)
        dist.barrier(self._group)
        if self._ranks.is_first_of_node:
            sync_tree(growing)  # what another node has in its cache only that node can make durable
        dist.barrier(self._group)
        if self._ranks.rank == 0:
            _write_progress(growing, progress, self._lora)
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
        }
        torch.set_rng_state(states["torch"])
        if "cuda" in states and self._ranks.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"])
