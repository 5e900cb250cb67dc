"""Computes a number for the weights that a vLLM worker serves: equal for equal weights of alike engines.

Finds errors, not intent: digests of versions are for that. On a CPU vLLM packs the weights of most layers for
the processor and lets the parameters go, quantized ones and others; an output layer keeps both. Such a layer
is asked what it makes of a few rows: that tells a weight that is stale, torn or another worker's, but no
change that is lost in rounding.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import aiohttp

from rl_agent.weights.load.repacking import keeps_two_forms
from rl_agent.weights.load.sglang_load import SglangServer
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.load.vllm_worker import WeightsWorker

if TYPE_CHECKING:
    import torch

_PART_VALUES = 2**22
_MODULUS = 2**61 - 1
_PROBES = 16
EXTENSION = "tests.integration.weights.fingerprints.FingerprintedWorker"
"""Value of vLLM's `--worker-extension-cls`."""


class FingerprintedWorker(WeightsWorker):
    """The product's extension of vLLM's workers, which tells a fingerprint, too."""

    def rl_agent_fingerprint(self) -> str:
        return fingerprint(served(self.model_runner.get_model()))


async def of_vllm(server: VllmServer) -> tuple[str, ...]:
    """Read the fingerprint of each worker of a server that was started with `EXTENSION`."""
    return tuple(map(str, await server._call("rl_agent_fingerprint")))


async def of_sglang(server: SglangServer) -> tuple[str, ...]:
    """Read SGLang's own checksum of the parameters of all its workers."""
    answer = await server._ask("/weights_checker", body={"action": "checksum"})
    return (str(answer["per_engine_checksum"]),)


async def fingerprints(url: str) -> tuple[str, ...]:
    async with aiohttp.ClientSession() as session:
        return await of_vllm(VllmServer(session, url, timeout_s=120))


def fingerprint(tensors: "Iterable[tuple[str, torch.Tensor]]") -> str:
    """Return the fingerprint of tensors, computed on their device."""
    import torch

    total = 0
    with torch.inference_mode():
        for name, tensor in sorted(tensors, key=lambda item: item[0]):
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            total = (total * 1_000_003 + sum(name.encode()) + flat.numel()) % _MODULUS
            for start in range(0, flat.numel(), _PART_VALUES):
                part = flat[start : start + _PART_VALUES].to(torch.int64)
                places = torch.arange(1, part.numel() + 1, device=part.device)
                total = (total * 1_000_003 + int((part * places).sum())) % _MODULUS
    return f"{total:016x}"


def served(model: "torch.nn.Module") -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield the parameters of a vLLM model, and the answer to a probe of each layer without its own."""
    import torch

    yield from model.named_parameters()
    for name, layer in model.named_modules():
        if _is_packed(layer):
            with torch.inference_mode():
                yield f"{name}.probe", _answer(layer)


def _is_packed(layer: Any) -> bool:
    """Return whether it is a linear layer of vLLM that computes with no weight among its parameters."""
    if keeps_two_forms(layer):
        return True
    if not hasattr(layer, "quant_method") or not hasattr(layer, "input_size"):
        return False
    weight = getattr(layer, "weight", None)
    return weight is None or weight.numel() == 0


def _answer(layer: Any) -> "torch.Tensor":
    import torch

    if keeps_two_forms(layer):
        width, dtype = layer.weight.shape[1], layer.weight.dtype
    else:
        width = getattr(layer, "input_size_per_partition", layer.input_size)  # which not all divide
        dtype = layer.params_dtype
    signs = torch.randint(0, 2, (_PROBES, width), generator=torch.Generator().manual_seed(0))
    answer: torch.Tensor = layer.quant_method.apply(layer, (2 * signs - 1).to(dtype), None)
    return answer
