"""Low-rank adapters (LoRA, by peft): W + α/r · B A is the layer's weight, of which A and B are trained.

W stays as it was loaded; where its files and the layers' computations are bf16, it is held so. A model folder
gets merged weights under the model's own names, and so do engines unless `lora.publish` is `adapter`: who
reads them needs to know nothing of adapters. A checkpoint holds A, B and their moments alone. The policy
without its adapter is the reference of a KL term: there is no second copy.
"""

import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.pytorch_utils import Conv1D

from rl_agent.config.sections.grpo import LoraSettings
from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.data.batch import PackedBatch
from rl_agent.trainer.grpo.data.images import ReadsImages
from rl_agent.trainer.grpo.model.buffers import persistent_buffers
from rl_agent.trainer.grpo.model.file_layout import FileLayout
from rl_agent.trainer.grpo.model.parallel import local, whole
from rl_agent.trainer.grpo.model.policy import PolicyModel

_ADAPTER = "default"
_BASE = ".base_layer."


@dataclass(frozen=True, slots=True)
class MergedWeight:
    """A weight with its adapter in it, computed when it is asked for; gathered as a sharded tensor is."""

    base: Tensor
    a: Tensor
    b: Tensor
    scaling: float
    is_transposed: bool = False
    """`base` is (in, out), as GPT-2's Conv1D has its weight, and not (out, in)."""

    @property
    def shape(self) -> torch.Size:
        return self.base.shape

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.base.dtype, self.a.dtype)

    def detach(self) -> "MergedWeight":
        return self

    @torch.no_grad()
    def full_tensor(self) -> Tensor:
        """Gather and merge the weight; collective over the row."""
        base, a, b = (whole(tensor.detach()) for tensor in (self.base, self.a, self.b))
        delta = (b @ a) * self.scaling
        return base + (delta.T if self.is_transposed else delta)


Weight: TypeAlias = Tensor | MergedWeight


def add_adapter(model: nn.Module, settings: LoraSettings, files: FileLayout | None = None) -> None:
    """Freeze the model and give its layers adapters; nothing where all weights are trained.

    Raises ConfigError for targets that are not linear layers: peft passes over experts that are one tensor.
    """
    if settings.rank is None:
        return
    files = files or FileLayout()
    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    if not isinstance(targets, str):
        _check_targets(model, targets, files)
    tower = [p for name, p in model.named_parameters() if ".visual." in name]
    is_frozen = tower and not any(parameter.requires_grad for parameter in tower)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=targets,
        exclude_modules=r".*\.visual\..*" if is_frozen else None,
    )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "fan_in_fan_out is set to")  # peft sets it for each layer
            inject_adapter_in_model(config, model, _ADAPTER)
    except ValueError as error:
        raise ConfigError(f"trainer.lora.targets: {error}") from error
    for name, layer in _layers(model).items():
        if not isinstance(layer.get_base_layer(), nn.Linear | Conv1D):
            raise ConfigError(
                f"trainer.lora.targets={targets}: {name} is not a linear layer; take all-linear"
            )
    if isinstance(model.get_output_embeddings(), LoraLayer):  # type: ignore[operator]
        raise ConfigError(
            f"trainer.lora.targets={targets}: the output matrix can have no adapter; name layers before it"
        )
    if settings.publish == "adapter":
        adapter_layers(model, files)  # what no engine could load is refused before anything is trained


def _check_targets(model: nn.Module, targets: Iterable[str], files: FileLayout) -> None:
    experts = experts_of(model)
    names = [name for weight in experts for name in (weight, *files.names_of(weight))]
    for target in targets:
        for name in names:
            if f".{target}." in f".{name}.":
                raise ConfigError(
                    f"trainer.lora.targets: {target}: {name} is of experts, which are one tensor and get no"
                    " adapter; name linear layers, such as q_proj and o_proj, or take all-linear"
                )


def experts_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """List the weights that hold all experts of a layer."""
    return {
        f"{name}.{own}": parameter
        for name, module in model.named_modules()
        for own, parameter in module.named_parameters(recurse=False)
        if parameter.ndim == 3 and not isinstance(module, nn.Conv1d)
    }


def initialize(model: nn.Module, seed: int) -> None:
    """Set A to random values, as peft does, and B to zero; the same whatever the number of ranks."""
    generator = torch.Generator().manual_seed(seed)
    for layer in _layers(model).values():
        a, b = _adapter(layer)
        fresh = torch.empty(a.shape)
        nn.init.kaiming_uniform_(fresh, a=math.sqrt(5), generator=generator)
        _set(a, fresh)
        _set(b, torch.zeros(b.shape))


def base_weights(model: nn.Module) -> dict[str, Tensor]:
    """List what a model folder holds, under its names: the weights, and buffers that belong to them."""
    weights = {name: parameter.data for name, parameter in base_parameters(model).items()}
    return weights | {name.replace(_BASE, "."): buffer for name, buffer in persistent_buffers(model).items()}


def base_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """List the parameters of a model folder, under its names."""
    adapters = {id(p) for layer in _layers(model).values() for p in _adapter(layer)}
    return {
        name.replace(_BASE, "."): parameter
        for name, parameter in model.named_parameters()
        if id(parameter) not in adapters
    }


def served_weights(model: nn.Module) -> dict[str, Weight]:
    """List what a model folder holds, each weight with its adapter merged."""
    base = base_weights(model)
    weights: dict[str, Weight] = dict(base)
    for name, layer in _layers(model).items():
        a, b = _adapter(layer)
        weights[f"{name}.weight"] = MergedWeight(
            base[f"{name}.weight"], a, b, layer.scaling[_ADAPTER], isinstance(layer.get_base_layer(), Conv1D)
        )
    return weights


def adapter_layers(model: nn.Module, files: FileLayout) -> dict[str, MergedWeight]:
    """List the layers with an adapter, by their names in the files of the model.

    Raises ConfigError for a layer that is no linear one of its own in them.
    """
    layers = {}
    for weight, merged in served_weights(model).items():
        if not isinstance(merged, MergedWeight):
            continue
        name, *others = files.names_of(weight)
        if others or merged.is_transposed or not name.endswith(".weight"):
            raise ConfigError(
                f"trainer.lora.publish=adapter: {weight} is no linear layer of its own in the model's files,"
                " as engines need it; set trainer.lora.publish=merged"
            )
        layers[name.removesuffix(".weight")] = merged
    return layers


class WithoutAdapter:
    """A policy as it was before it had an adapter: frozen, and no second copy."""

    def __init__(self, policy: PolicyModel) -> None:
        self._policy = policy

    @property
    def shares_prefixes(self) -> bool:
        return self._policy.shares_prefixes

    @property
    def reader(self) -> ReadsImages | None:
        return self._policy.reader

    def __call__(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), without_adapter(self._policy.model):
            result: tuple[Tensor, Tensor] = self._policy(batch)
            return result


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Let it compute as the model that it was made from."""
    layers = _layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
        # peft freezes them, and FSDP settles its dtypes by what is trained when it is first called.
        for parameter in _adapter(layer):
            parameter.requires_grad_(True)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def _layers(model: nn.Module) -> dict[str, LoraLayer]:
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def _adapter(layer: LoraLayer) -> tuple[nn.Parameter, nn.Parameter]:
    """Return A and B."""
    a, b = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
    assert isinstance(a, nn.Parameter) and isinstance(b, nn.Parameter)
    return a, b


@torch.no_grad()
def _set(parameter: nn.Parameter, value: Tensor) -> None:
    if isinstance(parameter, DTensor):
        value = value.to(parameter.to_local().device)
        value = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    local(parameter).copy_(local(value))
