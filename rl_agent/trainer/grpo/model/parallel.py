"""Groups the ranks of one trainer, and shares the weights among them.

The ranks form a grid of replicas × shards. The ranks of one row share a copy of the weights (FSDP2), split
along the first dimension of every tensor; rows hold equal copies. Gradients are summed over the row in every
backward pass, and over the rows once an optimizer step. One rank in a row is DDP, one row is FSDP; a single
process is a grid of one, and computes by the same code.

Weights, gradients and reductions are fp32; `precision` is what the layers compute in. Frozen weights may be
held in it (`model_files.py`).
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rl_agent.config.sections.grpo import ParallelSettings
from rl_agent.errors import ConfigError
from rl_agent.monitor import flops
from rl_agent.trainer.grpo.model.policy import PolicyModel

_AXES = ("replicate", "shard")
_SMALL = 500_000_000
"""A model with fewer parameters is limited by the processor that launches its kernels."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among its peers."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh

    @property
    def shard_size(self) -> int:
        return self.mesh.size(_AXES.index("shard"))

    @property
    def is_first_of_node(self) -> bool:
        return os.environ.get("LOCAL_RANK", "0") == "0"

    def sum(self, tensor: Tensor, over: Literal["shard", "replicate"] | None = None) -> None:
        """Sum a tensor in place over the ranks of this one's row or column, else over all."""
        size = self.world_size if over is None else self.mesh.size(_AXES.index(over))
        if size > 1:
            dist.all_reduce(tensor, group=None if over is None else self.mesh.get_group(over))

    def max_over_world(self, tensor: Tensor) -> None:
        """Take the maximum over all ranks in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def any_of_world(self, is_so: bool) -> bool:
        """Return whether it is so for any rank; asked before every group, so a rank alone asks nobody."""
        if self.world_size == 1:
            return is_so
        flag = torch.tensor([is_so], dtype=torch.int32)
        self.max_over_world(flag)
        return bool(flag.item())

    def bytes_of_first(self, content: bytes | None) -> bytes | None:
        """Broadcast what rank 0 passes; what the others pass does not matter."""
        if self.world_size == 1:
            return content
        length = torch.tensor([-1 if content is None else len(content)])
        dist.broadcast(length, 0)
        if length < 0:
            return None
        payload = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == 0 and content:
            payload.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        dist.broadcast(payload, 0)
        return payload.numpy().tobytes()

    @property
    def device_name(self) -> str:
        is_cuda = self.device.type == "cuda"
        return torch.cuda.get_device_name(self.device) if is_cuda else self.device.type

    def peak_flops_per_s(self, given_tflops: float | None) -> float | None:
        """Return the peak rate of this device, as given or by its name; None where neither says it."""
        if given_tflops is not None:
            return given_tflops * 1e12
        return flops.peak_flops_per_s(self.device_name) if self.device.type == "cuda" else None

    def max_over_shards(self, count: int) -> int:
        """Return the largest count of those that share this rank's weights; collective over the row."""
        if self.shard_size == 1:
            return count
        counts = torch.tensor(count, device=self.device)
        dist.all_reduce(counts, dist.ReduceOp.MAX, group=self.mesh.get_group("shard"))
        return int(counts)


@contextmanager
def join_ranks(shard_size: int | None, *, timeout_s: float) -> Iterator[Ranks]:
    """Meet the other ranks, as torchrun's environment names them. Raises ConfigError for an uneven grid."""
    is_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    # Both: groups are handed round and checkpoints coordinated by gloo while NCCL is busy with gradients.
    backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    try:
        yield grid(device, shard_size)
    finally:
        dist.destroy_process_group()


def grid(device: torch.device, shard_size: int | None) -> Ranks:
    """Make the grid of all ranks that have met."""
    world_size = dist.get_world_size()
    row = world_size if shard_size is None else shard_size
    if world_size % row:
        raise ConfigError(f"parallel.shard_size={row}: does not divide the number of ranks, {world_size}")
    mesh = init_device_mesh(device.type, (world_size // row, row), mesh_dim_names=_AXES)
    return Ranks(dist.get_rank(), world_size, device, mesh)


def computing_dtype(ranks: Ranks, settings: ParallelSettings) -> torch.dtype:
    """Return the type that the layers compute in."""
    precision = settings.precision or ("bf16" if ranks.device.type == "cuda" else "fp32")
    return torch.bfloat16 if precision == "bf16" else torch.float32


def shard(
    policy: PolicyModel, ranks: Ranks, settings: ParallelSettings, *, is_compiled: bool = False
) -> None:
    """Split the weights over the ranks of a row; a layer's are whole only while it computes.

    A small model's are whole from its first layer to the end of a pass: gathering each layer alone takes
    longer than what the layer computes. A frozen vision tower's are whole always. Layers are compiled only
    where `is_compiled`.
    """
    dtype = computing_dtype(ranks, settings)
    is_at_once = settings.reshard_after_forward is None and _is_small(policy)
    options: dict[str, Any] = {
        "mesh": ranks.mesh["shard"],
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32
        ),
        "reshard_after_forward": settings.reshard_after_forward is not False and not is_at_once,
        "ignored_params": _of_each_rank(policy, dtype),
    }
    for layer in policy.layers:
        if is_compiled:
            layer.compile(dynamic=True)  # micro-batches differ in size
        if not is_at_once:
            fully_shard(layer, **options)
    fully_shard(policy, **options)
    policy.same_passes = ranks.max_over_shards


def _of_each_rank(policy: PolicyModel, dtype: torch.dtype) -> set[nn.Parameter]:
    """Return the weights that each rank has whole: a frozen vision tower's, if they are in the layers' type.

    They are hundreds, and to gather them takes 0.05 s in each pass.
    """
    tower = getattr(policy.model.base_model, "visual", None)
    weights = [] if tower is None else tower.parameters()
    return {weight for weight in weights if not weight.requires_grad and weight.dtype == dtype}


def compiles_layers(model: nn.Module, ranks: Ranks, settings: ParallelSettings) -> bool:
    """Return `compile_layers`; where nothing was chosen, whether a compiled layer is faster than Liger's."""
    if settings.compile_layers is not None:
        return settings.compile_layers
    return ranks.device.type == "cuda" and not settings.use_liger_kernel and _is_small(model)


def _is_small(model: nn.Module) -> bool:
    return sum(parameter.numel() for parameter in model.parameters()) < _SMALL


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class GatheredTensor(Protocol):
    """A tensor that is gathered by all ranks of a row together."""

    def full_tensor(self) -> Tensor: ...


def whole(tensor: Tensor | GatheredTensor) -> Tensor:
    """Gather all of a tensor; collective over the row. A rank alone has all of it, and shares its memory."""
    if not isinstance(tensor, DTensor):
        return tensor if isinstance(tensor, Tensor) else tensor.full_tensor()
    return local(tensor) if tensor.device_mesh.size() == 1 else tensor.full_tensor()


def gradients(module: nn.Module) -> Iterable[Tensor]:
    """List this rank's parts of the gradients."""
    return [local(p.grad) for p in module.parameters() if p.grad is not None]


def release_memory() -> None:
    """Give the device what is kept for the next tensors, so that another process may have it."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
