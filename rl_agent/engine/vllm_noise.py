"""Draws the noise of all requests that have a seed together. Runs inside vLLM's processes, on CUDA.

vLLM launches a kernel for each such request in each step, one after the other. Here one kernel writes the
noise of all; that of a token is a function of the request's seed, the number of its tokens so far and the
token's id, by Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). So a
request draws the same whatever else is in the batch, as with vLLM's own generators, but other numbers.

vLLM's newer model runner (`VLLM_USE_V2_MODEL_RUNNER=1`) draws like this by itself, and does not call this.
"""

from typing import Any, cast

import torch
from vllm.triton_utils import tl, triton
from vllm.v1.sample.ops import topk_topp_sampler

_BLOCK = 512
_OFFSET = 4
"""The step in which the offset of a CUDA generator must grow."""


@triton.jit
def _noise_kernel(noise, states, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write -log(1 - u) for the uniform u of each column of a row; `states` has (row, seed, step)."""
    state = states + tl.program_id(0) * 3
    row, seed, step = tl.load(state), tl.load(state + 1), tl.load(state + 2).to(tl.int32)
    counter = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    none = counter * 0
    words = tl.philox(seed, counter, none + step, none, none)
    for part in tl.static_range(4):
        uniform = (words[part].to(tl.float32) + 0.5) * 2.3283064365386963e-10  # of 2^32 equal parts
        # Most tokens that are drawn have the smallest noise, which 1 - u would round.
        drawn = tl.where(uniform < 1e-3, uniform + uniform * uniform / 2, -tl.log(1 - uniform))
        column = counter + part * BLOCK * tl.num_programs(1)
        tl.store(noise + row * columns + column, drawn, mask=column < columns)


def write_noise(noise: torch.Tensor, states: torch.Tensor) -> None:
    """Fill rows of `noise` (float32, requests x tokens) with exponential noise of rate 1.

    `states`: int64, one (row, seed, step) for each of them.
    """
    columns = noise.shape[1]
    grid = (states.shape[0], triton.cdiv(columns, 4 * _BLOCK))
    _noise_kernel[grid](noise, states, columns, BLOCK=_BLOCK)


def draw_together() -> None:
    """Replace vLLM's drawing of tokens where requests have seeds."""
    one_by_one = topk_topp_sampler.random_sample

    def random_sample(
        probs: torch.Tensor, generators: dict[int, torch.Generator], *precise: bool
    ) -> torch.Tensor:
        if not generators or any(precise):
            return one_by_one(probs, generators, *precise)
        noise = torch.empty_like(probs)
        if len(generators) != probs.shape[0]:
            noise.exponential_()
        write_noise(noise, _advanced(generators).to(noise.device, non_blocking=True))
        return probs.div_(noise).argmax(dim=-1)

    topk_topp_sampler.random_sample = cast(Any, random_sample)


def _advanced(generators: dict[int, torch.Generator]) -> torch.Tensor:
    """Return (row, seed, step) of each generator, and count the step in it."""
    states = []
    for row, generator in generators.items():
        offset, seed = generator.get_offset(), generator.initial_seed()
        states.append((row, seed if seed < 2**63 else seed - 2**64, offset // _OFFSET))
        generator.set_offset(offset + _OFFSET)
    return torch.tensor(states, dtype=torch.int64, pin_memory=True)
