"""Runs inside vLLM's workers: loads a version that is on this host into the model that is served.

vLLM mixes the class into its worker (`--worker-extension-cls
rl_agent.weights.load.vllm_worker.WeightsWorker`) and calls its methods by name through `/collective_rpc`. It
opens files and no connection. Every worker reads the whole version from the same memory, and the model's own
loader takes the worker's share of each tensor, so any tensor parallelism works; beyond the version itself,
memory is needed for one layer.

Of vLLM it uses `Worker.reload_weights(weights_iterator=…)`, which 0.25 to 0.32 have, and the loader of the
model where that does the same (`in_place`). An adapter alone is added to the base model's weights, as they
are in its files; a server with `--enable-lora` keeps it beside them (`vllm_adapter`).
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_agent.errors import WeightsError
from rl_agent.weights.format.adapter import A, B, adapter_layers, is_adapter
from rl_agent.weights.load.in_place import is_loaded_in_place
from rl_agent.weights.load.repacking import repacking
from rl_agent.weights.load.same_model import Shapes, check_same_model, shapes_of
from rl_agent.weights.load.uploading import upload
from rl_agent.weights.load.vllm_adapter import begin, check_adapter, clear, load_adapter, takes_adapters
from rl_agent.weights.load.vllm_names import AS_STARTED
from rl_agent.weights.store.store import FULL, Snapshot, open_snapshot
from rl_agent.weights.store.tensor_sources import Checkpoint, local_folder, tensor_at

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)
_MOST_THREADS = 4


class WeightsWorker:
    """An extension of vLLM's worker. Names start alike so that none meets one of vLLM's."""

    device: "torch.device"
    reload_weights: Any
    model_runner: Any
    model_config: Any
    parallel_config: Any
    _rl_agent_shapes: Shapes | None = None
    _rl_agent_held: int | None = AS_STARTED
    _rl_agent_has_adapter = False

    def rl_agent_load_weights(
        self,
        root: str,
        weight_version: int,
        digest: str,
        stamp: Sequence[int] | None = None,
        adapter: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """Serve a version from the next step on, or say why not as `error`. The engine must be paused.

        `adapter`: the folder of a version that is an adapter alone, and the slot of its run.

        It does not raise: vLLM passes on the first worker's exception and leaves the answers of the others in
        their queues, where the next call would take them for its own. With data-parallel ranks it does: of
        those an exception of any is seen, and the answers of the first alone.
        """
        try:
            return self._rl_agent_load(root, weight_version, digest, stamp, adapter)
        except Exception as error:  # the model's own loader may raise anything
            if self.parallel_config.data_parallel_size > 1:
                raise
            _log.exception("weight version %d cannot be loaded", weight_version)
            return {"error": f"{type(error).__name__}: {error}", "held": self._rl_agent_held}

    def _rl_agent_load(
        self,
        root: str,
        weight_version: int,
        digest: str,
        stamp: Sequence[int] | None,
        adapter: tuple[str, int] | None,
    ) -> dict[str, Any]:
        """Load a version. Raises WeightsError, and leaves the model as it is, if it is not the announced one,
        not one of this model, or was written to since it was verified. An error from the loader itself leaves
        the model torn, and so does a version that was written to while it was loaded.
        """
        began = time.monotonic()
        snapshot = open_snapshot(Path(root), weight_version)
        if snapshot.manifest.digest != digest:
            raise WeightsError(f"{snapshot.folder}: is not the announced version")
        self._rl_agent_check(snapshot, 0 if adapter is None else adapter[1])
        assert (adapter is not None) == is_adapter(snapshot.manifest)
        verified = snapshot.stamp() if stamp is None else (stamp[0], stamp[1], stamp[2])
        snapshot.check_unchanged(verified)
        self._rl_agent_held = None
        if adapter is None:
            self._rl_agent_load_tensors(_tensors(snapshot, self.device))
            self._rl_agent_shapes = shapes_of(snapshot)
        elif takes_adapters(self.model_runner):
            self._rl_agent_has_adapter = True
            load_adapter(self, *adapter)
        else:
            self._rl_agent_load_tensors(_merged_tensors(snapshot, self.model_config.model, self.device))
        snapshot.check_unchanged(verified)
        self._rl_agent_held = weight_version
        return {
            "weight_version": weight_version,
            "digest": digest,
            "load_s": time.monotonic() - began,
        }

    def _rl_agent_load_tensors(self, tensors: "Iterator[tuple[str, torch.Tensor]]") -> None:
        model = self.model_runner.get_model()
        if is_loaded_in_place(model, self.device):
            model.load_weights(tensors)
        else:
            with repacking(model, self.device):
                self.reload_weights(weights_iterator=tensors)
        if takes_adapters(self.model_runner):
            begin(self.model_runner)  # vLLM 0.28 has dropped it

    def rl_agent_begin_adapters(self, slots: int) -> None:
        """Be ready for requests with the server's own adapters, which are zero."""
        for slot in range(slots):
            begin(self.model_runner, slot)

    def rl_agent_clear_adapter(self, slot: int) -> None:
        """Forget the versions of a run that has left its slot."""
        clear(self.model_runner, slot)
        self._rl_agent_held = AS_STARTED

    def rl_agent_held(self) -> dict[str, Any]:
        """Return the version that was loaded last, `AS_STARTED`, or None where a load has stopped halfway."""
        return {"weight_version": self._rl_agent_held}

    def _rl_agent_check(self, snapshot: Snapshot, slot: int) -> None:
        """Compare with what was loaded before. Raises WeightsError."""
        is_alone, quantization = is_adapter(snapshot.manifest), self.model_config.quantization
        if is_alone and takes_adapters(self.model_runner):
            if self._rl_agent_shapes is not None:
                raise WeightsError("the engine holds other weights than the base model's; start it again")
            check_adapter(self.model_runner, adapter_layers(snapshot.manifest.tensors), slot)
            return
        if self._rl_agent_has_adapter:
            raise WeightsError("the engine holds an adapter, which would stay; start it again")
        if quantization is not None:  # vLLM 0.28 loads int8 on a CPU without an error and answers nonsense
            raise WeightsError(
                f"the engine serves quantized weights ({quantization}), which vLLM may load wrongly while it"
                " runs; let it serve the model without quantization, or give it adapters alone and start it"
                " with --enable-lora"
            )
        if is_alone:
            return
        shapes = self._rl_agent_shapes or _shapes_of_folder(Path(self.model_config.model))
        if shapes is not None:
            check_same_model(snapshot, shapes)


def _shapes_of_folder(folder: Path) -> Shapes | None:
    """Read the shapes of the model that vLLM was started on; None where that is not possible."""
    try:
        return shapes_of(Checkpoint.of(folder))
    except WeightsError:
        return None


def _tensors(snapshot: Snapshot, device: "torch.device") -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield every tensor of a version by name."""
    view, manifest = snapshot.map(FULL), snapshot.manifest
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    tensors = (
        upload(view, manifest.tensors, device, threads=threads)
        if device.type == "cuda"
        else ((entry.name, tensor_at(view, entry)) for entry in manifest.tensors)
    )
    yield from _with_aliases(tensors, manifest.aliases)


def _merged_tensors(
    snapshot: Snapshot, model: str, device: "torch.device"
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield every tensor of the base model, with the adapter's product added in fp32 where it has one."""
    folder = local_folder(model)
    assert folder is not None  # it was compared with the adapter
    base, view = Checkpoint.of(folder), snapshot.map(FULL)
    matrices = {entry.name: entry for entry in snapshot.manifest.tensors}

    def merged() -> "Iterator[tuple[str, torch.Tensor]]":
        for name, tensor in base.tensors():
            layer, weight = name.removesuffix(".weight"), tensor.to(device)
            if layer + A in matrices:
                a, b = (tensor_at(view, matrices[layer + side]).to(device).float() for side in (A, B))
                weight = (weight.float() + b @ a).to(weight.dtype)
            yield name, weight

    yield from _with_aliases(merged(), base.aliases)


def _with_aliases(
    tensors: "Iterator[tuple[str, torch.Tensor]]", aliases: Mapping[str, str]
) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield tied tensors under each of their names, once in memory.

    A model that ties them takes what it needs: loaders skip an output layer that is the embedding.
    """
    names: dict[str, list[str]] = {}
    for alias, name in aliases.items():
        names.setdefault(name, []).append(alias)
    for name, tensor in tensors:
        for each in (name, *names.get(name, ())):
            yield each, tensor
