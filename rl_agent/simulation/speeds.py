"""Computes how fast engines and a trainer are, from a model's shape and what was measured.

An engine decodes in steps, each of which gives every running request one token:

    step = overhead + weights / bandwidth + requests × (computing) + context tokens × KV bytes / bandwidth

Measured on one H200 (vLLM 0.26, the shape of Qwen3-1.7B, 513 tokens of context on average): 479, 17,707 and
30,631 tokens per second at 1, 64 and 512 requests. `OVERHEAD_S` and `COMPUTE` are fitted to these three, with
80 % of the memory bandwidth that the data sheet names; other shapes follow from their weights and KV bytes.
What was not measured says so.
"""

from dataclasses import dataclass

from rl_agent.monitor.flops import BACKWARD, FORWARD, ModelShape, training_flops

GIB = 2**30
BYTES_PER_WEIGHT = 2
"""Engines hold bf16."""
OVERHEAD_S = 1.2e-3 / 28
"""The overhead of a decoding step and layer: launching kernels, sampling, scheduling."""
COMPUTE = 2.5
"""Seconds that a token of a full batch takes, over those of its operations at the peak rate: fitted."""
JOIN_S = 9e-3 / 28
"""The time by which prompts lengthen the step that they join, per layer. Measured, 1.7B: such a step has no
CUDA graph of the whole model, and Python starts the kernels of each layer."""
PREFILL_EFFICIENCY = 0.5
"""The share of the peak rate while a prompt is read. Assumed."""
PUBLISH_S_PER_GB = 1.15 / 3.44
"""The time to make a version of weights ready for fetching, differences included. Measured, 1.7B."""
PAUSE_S_PER_GB = 0.4 / 3.44
"""The time without a token of an engine that loads a version. Measured, 1.7B."""
UPDATE_S_PER_WEIGHT = 4e-10
"""The time of an optimizer step on one device, per weight. Assumed."""


def _qwen3(hidden: int, inner: int, layers: int, heads: int, *, tied: bool = False) -> ModelShape:
    return ModelShape(hidden, inner, layers, heads, 8, 128, 151_936, tied)


SHAPES = {
    "1.7b": _qwen3(2048, 6144, 28, 16, tied=True),
    "8b": _qwen3(4096, 12_288, 36, 32),
    "14b": _qwen3(5120, 17_408, 40, 40),
    "32b": _qwen3(5120, 25_600, 64, 64),
}
TRAINER_TFLOPS = {"1.7b": 0.453 * 780, "8b": 0.391 * 780}
"""The speed of one H200, measured; MFU times the rate of a matrix product in the same process."""
OTHER_TRAINER_TFLOPS = TRAINER_TFLOPS["8b"]
"""The speed for a shape that was not measured. Assumed."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, as the data sheet and measurements have it; the defaults are an H200's."""

    tflops: float = 780.0
    bandwidth_tb_per_s: float = 0.8 * 4.8
    memory_gb: float = 0.9 * 139 * GIB / 1e9
    """The memory that an engine may use."""


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """The speed of one engine, in seconds."""

    step_s: float
    """The time of a decoding step as such."""
    request_s: float
    """More for each running request."""
    context_s: float
    """More for each token of their contexts."""
    prefill_s: float
    """The time to read a token of a prompt; nothing is decoded meanwhile."""
    start_s: float
    """The time from a machine's first moment to an engine that answers."""
    fetch_s: float
    """The time to fetch a version while generating."""
    pause_s: float
    """The time to load a version."""
    capacity: int
    join_s: float = 0.0
    """More for a step that prompts join."""

    def decoding_s(self, requests: int, context_tokens: float) -> float:
        """Return the seconds of one step with so many requests."""
        return self.step_s + requests * self.request_s + context_tokens * self.context_s


def engine_speed(
    shape: ModelShape,
    device: Device,
    *,
    gpus: int,
    start_s: float,
    link_gbit_per_s: float,
    max_running: int,
    mean_context: float,
) -> EngineSpeed:
    """Return the speed of an engine of `gpus` devices; their sharing is taken to cost nothing."""
    size_gb = shape.weights * BYTES_PER_WEIGHT / 1e9
    bandwidth = device.bandwidth_tb_per_s * 1e12 * gpus
    flops_s = 2.0 * shape.weights / (device.tflops * 1e12 * gpus)
    room = (device.memory_gb * gpus - size_gb) * 1e9 / shape.kv_bytes
    return EngineSpeed(
        step_s=OVERHEAD_S * shape.layers + size_gb * 1e9 / bandwidth,
        request_s=COMPUTE * flops_s,
        context_s=shape.kv_bytes / bandwidth,
        prefill_s=flops_s / PREFILL_EFFICIENCY,
        join_s=JOIN_S * shape.layers,
        start_s=start_s,
        fetch_s=size_gb * 8 / link_gbit_per_s,
        pause_s=PAUSE_S_PER_GB * size_gb / gpus,
        capacity=max(0, min(max_running, int(room / mean_context))),
    )


@dataclass(frozen=True, slots=True)
class TrainerSpeed:
    """The speed of all devices of a trainer together."""

    shape: ModelShape
    tflops: float
    update_s: float
    """The time of an optimizer step."""
    publish_s: float
    switch_s: float
    """The time to switch devices from training to generating, or back."""
    has_reference: bool
    """A KL term asks a frozen model as well."""

    def seconds_for(self, sequences: list[tuple[int, int]]) -> float:
        """Return the seconds to train on sequences given as (length, response tokens)."""
        passes = FORWARD + BACKWARD + (FORWARD if self.has_reference else 0)
        return training_flops(self.shape, sequences, passes=passes) / (self.tflops * 1e12)


def trainer_speed(
    shape: ModelShape, *, gpus: int, tflops_per_gpu: float, switch_s: float, has_reference: bool
) -> TrainerSpeed:
    """More devices are taken to be as efficient as one."""
    return TrainerSpeed(
        shape,
        tflops_per_gpu * gpus,
        UPDATE_S_PER_WEIGHT * shape.weights / gpus,
        PUBLISH_S_PER_GB * shape.weights * BYTES_PER_WEIGHT / 1e9,
        switch_s,
        has_reference,
    )
