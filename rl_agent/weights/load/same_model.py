"""Checks by names, shapes and types of tensors that a version is of the model that an engine serves.

Asked before anything is loaded: a loader that meets a strange name stops halfway, or passes over it.
"""

from collections.abc import Iterable, Mapping

from rl_agent.errors import WeightsError
from rl_agent.weights.format.adapter import LayerShape
from rl_agent.weights.format.dtypes import kind_of
from rl_agent.weights.format.manifest import TensorEntry, TensorSpec
from rl_agent.weights.store.store import Snapshot
from rl_agent.weights.store.tensor_sources import Checkpoint

Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""The kind of type and the shape, by name. Floats are cast on the way, so they are one kind."""

_HEAD = "lm_head.weight"
"""May be left out, of a version or of a checkpoint, where the model ties it to the embedding."""
_SCALES = ("_scale", "_scale_inv", ".scales", ".weight_packed", ".qweight")
"""Ends of names that only quantized checkpoints have."""


def shapes_of(source: Snapshot | Checkpoint) -> Shapes:
    if isinstance(source, Snapshot):
        return _shapes(source.manifest.tensors, source.manifest.aliases)
    return _shapes(source.specs, source.aliases)


def check_same_model(snapshot: Snapshot, served: Shapes) -> None:
    """Check a version against `served`, which the engine serves. Raises WeightsError if the models differ."""
    shapes = shapes_of(snapshot)
    differing = {name for name in shapes.keys() | served.keys() if shapes.get(name) != served.get(name)}
    left_out = (served.keys() - shapes.keys()) | (snapshot.manifest.aliases.keys() - served.keys())
    differing -= {name for name in left_out if name.endswith(_HEAD)}
    if any(name.endswith(_SCALES) for name in differing):
        raise WeightsError(
            f"{snapshot.folder}: is of a quantized model, and the engine serves one that is not"
        )
    if differing:
        first = min(differing)
        raise WeightsError(f"{snapshot.folder}: is of another model: {_difference(first, shapes, served)}")


def check_same_base(layers: Mapping[str, LayerShape], served: Shapes) -> None:
    """Check the layers of an adapter against `served`. Raises WeightsError if there is none that they fit."""
    for layer, shape in layers.items():
        name = f"{layer}.weight"
        wanted = (shape.outputs, shape.inputs)
        if name not in served or served[name][1] != wanted:
            here = f"has the shape {served[name][1]}" if name in served else "is not there"
            raise WeightsError(
                f"the adapter is of another model: {name} of the engine's {here}, not {wanted}"
            )


def _difference(name: str, shapes: Shapes, served: Shapes) -> str:
    if name not in shapes or name not in served:
        return f"{name} is {'new' if name in shapes else 'missing'}"
    (kind, shape), (known_kind, known_shape) = shapes[name], served[name]
    if shape != known_shape:
        return f"{name} has the shape {shape}, the engine's {known_shape}"
    return f"{name} is of type {kind}, the engine's {known_kind}"


def _shapes(tensors: Iterable[TensorEntry | TensorSpec], aliases: dict[str, str]) -> Shapes:
    shapes = {tensor.name: (kind_of(tensor.dtype), tuple(tensor.shape)) for tensor in tensors}
    return shapes | {alias: shapes[name] for alias, name in aliases.items()}
