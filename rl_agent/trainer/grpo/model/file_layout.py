"""Maps the weights of a model to the tensors in the files of its folder.

A mixture of experts has one tensor for all experts of a layer in memory, and in its files one for each:

    mlp.experts.gate_up_proj [128, 2·768, 2048]  ◄─►  mlp.experts.0.gate_proj.weight [768, 2048]
                                                      mlp.experts.0.up_proj.weight   [768, 2048], …

What a tensor of a file belongs to, and where in it the tensor lies, is taken from transformers' conversions,
by which `from_pretrained` loads: there is no table of architectures here. Every part is a view, so loading
and publishing copy nothing, and a rank reads the experts that it holds. Versions and exported models have the
names of the files that the training began with: engines meet the names that they loaded.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import PreTrainedModel
from transformers import __version__ as transformers_version
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from rl_agent.errors import ConfigError, PublishError
from rl_agent.served_model.weights import Tensor as FileTensor
from rl_agent.served_model.weights import read_tensors, same_values

_DTYPES = ("F64", "F32", "BF16", "F16")
"""The dtypes of weights that are read as they are; others are quantized, numbers without their scales."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A tensor of a file as a view of one row of the weight that it belongs to."""

    name: str
    row: int
    start: int
    """Values of the row before its first."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def within(self, rows: Tensor, first_row: int = 0) -> Tensor | None:
        """View the tensor in a contiguous part of the weight; None if its row is not among `rows`."""
        if not first_row <= self.row < first_row + len(rows):
            return None
        row = rows[self.row - first_row]
        return row.as_strided(self.shape, self.stride, row.storage_offset() + self.start)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The tensors of each weight; one that is not mentioned is one tensor under its own name."""

    parts: Mapping[str, tuple[TensorPart, ...]] = field(default_factory=dict)
    """The parts of the weights that are several tensors."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The tensors' names of the weights that are named otherwise."""
    kept: Mapping[str, FileTensor] = field(default_factory=dict)
    """Tensors that no training changes and that are passed on as they are: those of buffers and of parameters
    without a gradient, and those that transformers has no place for, such as drafting heads."""

    unknown: tuple[str, ...] = ()
    """Those of `kept` that transformers neither has a place for nor expects."""

    @classmethod
    def of(cls, model: PreTrainedModel, folder: Path) -> "FileLayout":
        """Compare a folder with a model that is not sharded yet; it may be on the device "meta".

        Raises ConfigError if the folder does not hold every weight, in the shape that the model wants.
        """
        try:
            files = read_tensors(folder)
        except PublishError as error:
            raise ConfigError(f"{error}; a download may have been broken off") from error
        return _Comparison(model, folder, files).layout()

    def names_of(self, weight: str) -> list[str]:
        """List the names of the tensors that are this weight."""
        if weight in self.parts:
            return [part.name for part in self.parts[weight]]
        return [self.names.get(weight, weight)]

    def is_kept(self, weight: str) -> bool:
        return self.names_of(weight)[0] in self.kept

    def divide(self, weight: str, whole: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Divide a whole weight into the tensors of a file."""
        if weight not in self.parts:
            yield self.names.get(weight, weight), whole
            return
        rows = whole.contiguous()
        for part in self.parts[weight]:
            view = part.within(rows)
            assert view is not None
            yield part.name, view

    def targets(self, weight: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of a file that this rank has to read, each with the place that it is read to."""
        if weight not in self.parts:
            yield self.names.get(weight, weight), tensor
            return
        rows, first_row = _rows(tensor)
        for part in self.parts[weight]:
            if (view := part.within(rows, first_row)) is not None:
                yield part.name, view


def _rows(tensor: Tensor) -> tuple[Tensor, int]:
    """Return this rank's rows, and the number of the first."""
    if not isinstance(tensor, DTensor):
        return tensor, 0
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), int(offset[0])


class _Comparison:
    """Compares a model with the tensors of a folder."""

    def __init__(self, model: PreTrainedModel, folder: Path, files: dict[str, FileTensor]) -> None:
        self._model = model
        self._kind = f"a model of type {model.config.model_type}"
        self._folder = folder
        self._files = files
        conversions = get_model_conversion_mapping(model)
        self._renamings = [entry for entry in conversions if isinstance(entry, WeightRenaming)]
        self._converters = [entry for entry in conversions if isinstance(entry, WeightConverter)]
        self._state: dict[str, Tensor] = model.state_dict()
        # The second name of a tied weight is in the state alone; a buffer that is in no file is not.
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        self._own = self._state.keys() & (parameters.keys() | buffers.keys())
        self._fixed = {name for name in self._own if name in buffers or not parameters[name].requires_grad}

    def layout(self) -> FileLayout:
        sources = self._sources()
        self._check_complete(sources)
        self._check_tied(sources)
        names: dict[str, str] = {}
        parts: dict[str, tuple[TensorPart, ...]] = {}
        for weight in sorted(self._own):
            if sources[weight] != [weight] and (inverse := self._inverse_of(weight)) is not None:
                parts[weight] = tuple(self._parts(weight, sources[weight], inverse))
            else:
                names[weight] = self._only_name(weight, sources[weight])
        taken = {name for weight in sources.keys() - self._fixed for name in sources[weight]}
        return FileLayout(
            parts,
            {weight: name for weight, name in names.items() if weight != name},
            {name: tensor for name, tensor in self._files.items() if name not in taken},
            tuple(self._unknown(sources)),
        )

    def _sources(self) -> dict[str, list[str]]:
        """List the tensors that each weight of the model is made of."""
        sources: dict[str, list[str]] = {}
        for name in sorted(self._files, key=dot_natural_key):
            weight = self._renamed(name, self._converters)
            if weight not in self._state and name in self._state:
                weight = name
            if weight in self._state:
                sources.setdefault(weight, []).append(name)
        return sources

    def _renamed(self, name: str, converters: list[WeightConverter]) -> str:
        """Rename a tensor of a file as transformers does; without `converters`, before it is joined."""
        prefix = self._model.base_model_prefix
        renamed, _ = rename_source_key(name, self._renamings, converters, prefix, self._state)
        return renamed

    def _inverse_of(self, weight: str) -> WeightConverter | None:
        """Find what takes a weight apart; None where transformers joins nothing to it."""
        for converter in self._converters:
            inverse = converter.reverse_transform()
            assert isinstance(inverse, WeightConverter)
            if inverse.rename_source_key(weight)[1] is not None:
                return inverse
        return None

    def _parts(self, weight: str, sources: list[str], inverse: WeightConverter) -> Iterator[TensorPart]:
        whole = torch.empty(self._state[weight].shape, device="meta")
        renamed, pattern = inverse.rename_source_key(weight)
        assert pattern is not None
        inverse.add_tensor(renamed, weight, pattern, whole)  # type: ignore[arg-type]
        views = inverse.convert(renamed, model=self._model, config=self._model.config)
        for name in sources:
            joined = self._renamed(name, [])
            if joined not in views:  # a checkpoint of the model without its head
                joined = f"{self._model.base_model_prefix}.{joined}"
            if joined not in views:
                raise ConfigError(f"{self._folder}: {name} is not a part of {weight} as {self._kind} has it")
            yield self._part(name, weight, whole, views.pop(joined))
        if views:
            raise ConfigError(
                f"{self._folder}: lacks {min(views)} of {self._kind}; a download may have been broken off"
            )

    def _part(self, name: str, weight: str, whole: Tensor, view: Tensor) -> TensorPart:
        row, start = divmod(int(view.storage_offset()), whole.stride(0))
        last = start + sum((n - 1) * step for n, step in zip(view.shape, view.stride(), strict=True))
        if view._base is not whole or last >= whole.stride(0):
            raise ConfigError(
                f"{self._folder}: trainer.kind=grpo cannot train {self._kind}: what transformers does with"
                f" {name} to make {weight} cannot be undone in place"
            )
        self._check_shape(name, view)
        return TensorPart(name, row, start, tuple(view.shape), view.stride())

    def _only_name(self, weight: str, sources: list[str]) -> str:
        if len(sources) > 1:
            raise ConfigError(f"{self._folder}: holds {weight} twice, as {sources[0]} and as {sources[1]}")
        self._check_shape(sources[0], self._state[weight])
        return sources[0]

    def _check_shape(self, name: str, weight: Tensor) -> None:
        shape, dtype = self._files[name].shape, self._files[name].dtype
        if weight.is_floating_point() and dtype not in _DTYPES:
            raise ConfigError(
                f"{self._folder}: {name} is {dtype}, so its weights are quantized, and trainer=grpo trains"
                " bf16 or fp32; take the model without quantization"
            )
        if shape != tuple(weight.shape):
            raise ConfigError(
                f"{self._folder}: {name} has shape {list(shape)}, and {self._kind} with this config.json has"
                f" {list(weight.shape)} there"
            )

    def _check_complete(self, sources: dict[str, list[str]]) -> None:
        missing = sorted(self._own - sources.keys(), key=dot_natural_key)
        if not missing:
            return
        lacking = f"{self._folder}: lacks {missing[0]} of {self._kind} ({len(missing)} weights are not there)"
        used_names = {name for names in sources.values() for name in names}
        unknown = sorted(self._files.keys() - used_names, key=dot_natural_key)
        if not unknown:
            raise ConfigError(f"{lacking}; a download may have been broken off")
        raise ConfigError(
            f"{lacking}, and transformers {transformers_version} does not know what its {unknown[0]} is;"
            " trainer.kind=grpo trains what transformers loads from safetensors files without the model's own"
            " code"
        )

    def _check_tied(self, sources: dict[str, list[str]]) -> None:
        """Raises ConfigError where the files hold other values for the second name of a tied weight."""
        first_names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            own = first_names[id(parameter)]
            if name == own or name not in sources or name in self._own:
                continue
            own_values, other = self._files[sources[own][0]], self._files[sources[name][0]]
            if not same_values(own_values, other):
                raise ConfigError(
                    f"{self._folder}: config.json ties {name} to {own}, and the files hold other values for"
                    " it, which no engine would serve; tie_word_embeddings=false makes it a weight of its own"
                )

    def _unknown(self, sources: dict[str, list[str]]) -> Iterator[str]:
        """Yield what is in the files and has no place in the model, unless transformers expects that."""
        used_names = {name for names in sources.values() for name in names}
        expected = self._model._keys_to_ignore_on_load_unexpected or ()
        for name in sorted(self._files.keys() - used_names, key=dot_natural_key):
            if not any(re.search(pattern, name) for pattern in expected):
                yield name
