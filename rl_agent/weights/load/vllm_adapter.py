"""Lets a vLLM server with `--enable-lora` sample with an adapter that changes while it runs, whoever asks.

    API process      every request is for the one adapter of this server           `use_adapter`
    engine process   that one is zero until the first version is loaded into it    `begin`, `load_adapter`

So there is no name that a client could leave out, and no request of the base model that goes on as one: what
was begun with zeros goes on with the adapter that is loaded meanwhile, as it would with new weights.

vLLM's own route to load an adapter under a name marks the requests that come after it, and its workers then
read the files anew at every step (`load_inplace`, 0.28). So the workers are asked (`vllm_worker`), and
requests are not marked.

Its kernels cost an engine on a GPU a third to a half of its tokens per second: this is for servers whose own
weights cannot change, such as quantized ones.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from rl_agent.errors import WeightsError
from rl_agent.weights.format.adapter import A, LayerShape
from rl_agent.weights.load.vllm_names import BEGIN_ADAPTER

_ZERO_RANK = 8
_NAME, _ID = "rl-agent", 2**20
"""vLLM counts those that its own route loads from 1."""


async def use_adapter(engine: Any) -> None:
    """Let all requests of an API process that name no adapter of the user's be for this server's own."""
    if engine.vllm_config.lora_config is None or not engine.vllm_config.parallel_config.worker_extension_cls:
        return
    await engine.collective_rpc(BEGIN_ADAPTER)
    generate, own = engine.generate, _request("loaded by the worker")
    has_room = engine.vllm_config.lora_config.max_loras > 1

    def with_adapter(*arguments: Any, lora_request: Any = None, **others: Any) -> Any:
        if lora_request is not None and not has_room:
            raise ValueError("the engine's one adapter is the pool's; start it with --max-loras 2 for others")
        return generate(*arguments, lora_request=lora_request or own, **others)

    engine.generate = with_adapter


def begin(runner: Any) -> None:
    """Give a worker's model the adapter with which it computes as it does without one, unless it has it."""
    runner.lora_manager.add_dummy_lora(
        _request("zeros"), rank=min(runner.lora_config.max_lora_rank, _ZERO_RANK)
    )
    runner.pin_lora(_ID)  # else one of the user's may put it out, and it comes from no folder


def takes_adapters(runner: Any) -> bool:
    """Return whether a worker's server was started with `--enable-lora`."""
    return getattr(runner, "lora_config", None) is not None


def check_adapter(runner: Any, layers: Mapping[str, LayerShape]) -> None:
    """Check that a worker's model can have the adapter. Raises WeightsError; nothing is changed."""
    rank, room = max(shape.rank for shape in layers.values()), runner.lora_config.max_lora_rank
    if _ID not in runner.lora_manager.list_adapters():
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


def load_adapter(worker: Any, folder: str) -> None:
    """Put the adapter of a folder in the place of the one before; the engine must be paused."""
    worker.add_lora(_request(folder, load_inplace=True))
    worker.model_runner.pin_lora(_ID)


def _request(folder: str, **options: Any) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(_NAME, _ID, folder, **options)


def _unknown(manager: Any, layers: Iterable[str]) -> list[str]:
    """List the layers that vLLM passes over in silence: those for which its model has no module."""
    mapper: Any = getattr(manager.model, "hf_to_vllm_mapper", None)
    if hasattr(mapper, "get_unstacked_mapper"):
        mapper = mapper.get_unstacked_mapper()
    known = {part for name in manager.modules for part in (name, *manager.packed_modules.get(name, ()))}
    names = {layer: layer if mapper is None else mapper._map_name(layer + A) or "" for layer in layers}
    return [layer for layer, name in names.items() if name.removesuffix(A) not in known]
