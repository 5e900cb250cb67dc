"""Lets a vLLM server with `--enable-lora` sample with an adapter that changes while it runs, whoever asks.

    API process      a request is for the adapter of its run              `use_adapters`, `choose_slot`
    engine process   that is zero until the first version is loaded       `begin`, `load_adapter`

A server has one slot, or as many as there are runs that share it (`worker.shared_engine`). vLLM hashes the
name of an adapter with the blocks of its prefix cache, so that no run meets what another has computed.
There is no name that a client could leave out, and no request of the base model that goes on as one: what
was begun with zeros goes on with the adapter that is loaded meanwhile, as it would with new weights.

vLLM's own route to load an adapter under a name marks the requests that come after it, and its workers then
read the files anew at every step (`load_inplace`, 0.28). So the workers are asked (`vllm_worker`), and
requests are not marked.

Its kernels cost an engine on a GPU a third to a half of its tokens per second: this is for servers whose own
weights cannot change, such as quantized ones.
"""

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from rl_agent.errors import WeightsError
from rl_agent.weights.format.adapter import A, LayerShape
from rl_agent.weights.load.vllm_names import BEGIN_ADAPTERS, SLOT_HEADER, SLOTS

_ZERO_RANK = 8
_NAME, _ID = "rl-agent", 2**20
"""vLLM counts those that its own route loads from 1."""
_slot = ContextVar("slot", default=0)
_HEADER = SLOT_HEADER.lower().encode()


def choose_slot(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Let what the current request generates be with the adapter that its headers name."""
    _slot.set(next((int(value) for name, value in headers if name == _HEADER), 0))


async def use_adapters(engine: Any, environ: Mapping[str, str]) -> None:
    """Let requests of an API process that name no adapter of the user's be for one of this server's own."""
    if engine.vllm_config.lora_config is None or not engine.vllm_config.parallel_config.worker_extension_cls:
        return
    slots, room = int(environ.get(SLOTS, 1)), engine.vllm_config.lora_config.max_loras
    await engine.collective_rpc(BEGIN_ADAPTERS, args=(slots,))
    generate, own = engine.generate, [_request(slot, "loaded by the worker") for slot in range(slots)]

    def with_adapter(*arguments: Any, lora_request: Any = None, **others: Any) -> Any:
        if lora_request is not None and room == slots:
            raise ValueError(
                f"all adapters of the engine are its pools'; start it with --max-loras {slots + 1} for others"
            )
        return generate(*arguments, lora_request=lora_request or own[_slot.get()], **others)

    engine.generate = with_adapter


def begin(runner: Any, slot: int = 0) -> None:
    """Give a worker's model the adapter with which it computes as it does without one, unless it has it."""
    runner.lora_manager.add_dummy_lora(
        _request(slot, "zeros"), rank=min(runner.lora_config.max_lora_rank, _ZERO_RANK)
    )
    runner.pin_lora(_ID + slot)  # else one of the user's may put it out, and it comes from no folder


def clear(runner: Any, slot: int) -> None:
    """Make the adapter of a slot zero again; no request may be running with it."""
    runner.remove_lora(_ID + slot)
    begin(runner, slot)


def takes_adapters(runner: Any) -> bool:
    """Return whether a worker's server was started with `--enable-lora`."""
    return getattr(runner, "lora_config", None) is not None


def check_adapter(runner: Any, layers: Mapping[str, LayerShape], slot: int) -> None:
    """Check that a worker's model can have the adapter. Raises WeightsError; nothing is changed."""
    rank, room = max(shape.rank for shape in layers.values()), runner.lora_config.max_lora_rank
    if _ID + slot not in runner.lora_manager.list_adapters():
        raise WeightsError(
            "the engine was not started by rl_agent.engine.vllm_serve: requests name no adapter"
        )
    if rank > room:
        raise WeightsError(
            f"the adapter has rank {rank}, the engine takes {room}: start it with --max-lora-rank {rank}"
        )
    unknown = _unknown(runner.lora_manager._adapter_manager, layers)
    if unknown:
        raise WeightsError(
            f"vLLM has no adapter for {unknown[0]} of this model, and would leave it out; name other layers"
            " in trainer.lora.targets, or publish with trainer.lora.publish=merged"
        )


def load_adapter(worker: Any, folder: str, slot: int) -> None:
    """Put the adapter of a folder in the place of the one before; the engine must be paused."""
    worker.add_lora(_request(slot, folder, load_inplace=True))
    worker.model_runner.pin_lora(_ID + slot)


def _request(slot: int, folder: str, **options: Any) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"{_NAME}-{slot}", _ID + slot, folder, **options)


def _unknown(manager: Any, layers: Iterable[str]) -> list[str]:
    """List the layers that vLLM passes over in silence: those for which its model has no module."""
    mapper: Any = getattr(manager.model, "hf_to_vllm_mapper", None)
    if hasattr(mapper, "get_unstacked_mapper"):
        mapper = mapper.get_unstacked_mapper()
    known = {part for name in manager.modules for part in (name, *manager.packed_modules.get(name, ()))}
    names = {layer: layer if mapper is None else mapper._map_name(layer + A) or "" for layer in layers}
    return [layer for layer, name in names.items() if name.removesuffix(A) not in known]
