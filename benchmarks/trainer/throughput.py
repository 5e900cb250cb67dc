"""Tokens per second and model FLOPs utilisation of the trainer's gradient, beside plain transformers.

    python benchmarks/trainer/throughput.py --shape tiny                         CPU, under a minute
    python benchmarks/trainer/throughput.py --shape 1.7b                         one GPU
    python benchmarks/trainer/throughput.py --shape 8b --offload-optimizer       one GPU of 141 GB
    torchrun --nproc-per-node=4 benchmarks/trainer/throughput.py --shape 8b      four GPUs

Models have the real shape and random weights, episodes have random tokens and long-tailed lengths: this
measures speed, never learning. Ours is `UpdateStep` as the trainer runs it: fp32 weights and gradients,
layers in bf16, packed sequences, chunked logits, FSDP2. Plain is transformers with fp32 weights under bf16
autocast, its SDPA attention, rows padded to the longest, all logits at once, on one GPU. Both compute the
same episodes' policy gradient, with the same share of layers checkpointed; the update is timed apart.

FLOPs are those of the model, not of the implementation (`rl_agent.monitor.flops`). MFU divides by the rate of
a bf16 matrix product measured in the same process.
"""

import argparse
import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from qwen3_shapes import SHAPES
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PretrainedConfig, PreTrainedModel, Qwen3Config

from rl_agent.config.sections.grpo import BatchSettings, LossSettings, OptimizerSettings, ParallelSettings
from rl_agent.monitor.flops import ModelShape, training_flops
from rl_agent.system.flag_parser import FlagParser
from rl_agent.trainer.grpo.data.samples import Group, Segment, TrainingSample, Versions
from rl_agent.trainer.grpo.model.fused import use_fused_kernels
from rl_agent.trainer.grpo.model.parallel import Ranks, gradients, join_ranks, shard
from rl_agent.trainer.grpo.model.policy import PolicyModel, build_model
from rl_agent.trainer.grpo.step.optimizer import AdamW
from rl_agent.trainer.grpo.step.update_step import UpdateStep

LOSS = LossSettings(
    advantage="grpo",
    rewards="together",
    reward_weights={},
    drop_uninformative=False,
    normalization="token_mean",
    constant_length=1,
    policy_loss="ppo",
    sapo_temperature_positive=1.0,
    sapo_temperature_negative=1.05,
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=3.0,
    proximal="current",
    correction="truncate",
    correction_low=0.5,
    correction_high=2.0,
    sequence_mask="none",
    sequence_mask_bound=None,
    kl_in="none",
    kl_estimator="k3",
    kl_coefficient=0.0,
    entropy_coefficient=0.0,
    temperature=1.0,
    overlong="keep",
    overlong_cache=None,
    overlong_penalty=0.0,
    longest_response=1,
)
OPTIMIZER = OptimizerSettings(
    learning_rate=1e-6,
    schedule="constant",
    warmup_steps=0,
    decay_steps=None,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-8,
    weight_decay=0.01,
    max_grad_norm=1.0,
)
GROUP_SIZE = 8


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    name: str
    seconds: float
    tokens: int
    flops: float
    peak_gib: float
    note: str = ""


def episodes(config: Qwen3Config, tokens: int, longest: int, prompt: int, seed: int) -> list[Group]:
    """Groups with about that many tokens; lengths of responses are log-normal, cut at `longest`."""
    generator = np.random.default_rng(seed)
    samples: list[TrainingSample] = []
    while sum(len(sample.segments[0]) for sample in samples) < tokens:
        response = int(np.clip(generator.lognormal(np.log(longest / 8), 1.0), 8, longest - prompt))
        length = prompt + response
        segment = Segment(
            generator.integers(0, config.vocab_size, length).astype(np.int32),
            np.arange(length) >= prompt,
            np.full(length, -np.log(config.vocab_size), np.float32),
        )
        samples.append(
            TrainingSample(str(len(samples)), (segment,), float(generator.random()), Versions(0, 0))
        )
    starts = range(0, len(samples), GROUP_SIZE)
    return [Group(str(start), tuple(samples[start : start + GROUP_SIZE])) for start in starts]


def model_flops(config: Qwen3Config, groups: list[Group]) -> float:
    """FLOPs of forward and backward pass, as `rl_agent.monitor.flops` counts them."""
    shape = ModelShape.of(config.to_dict())
    assert shape is not None
    return training_flops(shape, [(len(part), int(part.is_response.sum())) for part in segments_of(groups)])


def segments_of(groups: list[Group]) -> list[Segment]:
    return [segment for group in groups for sample in group.samples for segment in sample.segments]


def matmul_flops_per_s(device: torch.device) -> float:
    """Speed of a large bf16 matrix product, the best of five."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    times = [timed(lambda: a @ a, device) for _ in range(8)][3:]
    return 2 * size**3 / min(times)


def timed(run: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    started = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_gib(device: torch.device) -> float:
    """Largest memory since the last call; unused memory is given back then."""
    gc.collect()
    if device.type != "cuda":
        return 0.0
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return peak


def build_policy(
    options: argparse.Namespace,
    config: PretrainedConfig,
    ranks: Ranks,
    *,
    use_liger: bool | None,
    precision: str,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[PolicyModel, bool]:
    """Build the policy as the trainer does, with random weights unless given; also whether it has Liger's
    kernels.
    """
    torch.manual_seed(0)
    with ranks.device:
        model = build_model(config, activation_checkpointing=options.activation_checkpointing)
    if weights is not None:
        model.load_state_dict(weights)
    return policy_of(options, model, ranks, use_liger=use_liger, precision=precision)


def policy_of(
    options: argparse.Namespace,
    model: PreTrainedModel,
    ranks: Ranks,
    *,
    use_liger: bool | None,
    precision: str,
) -> tuple[PolicyModel, bool]:
    """Make a model the trainer's; also say whether it has Liger's kernels."""
    is_fused = use_fused_kernels(model, use_liger, ranks.device, is_compiled=options.compile_layers)
    policy = PolicyModel(model, temperature=1.0, chunk_tokens=options.logits_chunk_tokens)
    parallel = {
        "shard_size": None,
        "reshard_after_forward": None,
        "precision": precision,
        "activation_checkpointing": options.activation_checkpointing,
        "offload_optimizer": options.offload_optimizer,
        "compile_layers": options.compile_layers,
        "use_liger_kernel": use_liger,
        "peer_timeout_s": 600,
    }
    shard(policy, ranks, ParallelSettings.model_validate(parallel), is_compiled=options.compile_layers)
    return policy, is_fused


def batch_settings(options: argparse.Namespace) -> BatchSettings:
    return BatchSettings(
        token_budget=options.token_budget,
        logits_chunk_tokens=options.logits_chunk_tokens,
        max_staleness=0,
        allow_mixed_versions=False,
        finish_timeout_s=600,
        order="arrival",
    )


def compare(options: argparse.Namespace, config: Qwen3Config, ranks: Ranks) -> None:
    """Measure the distance of a micro-batch's gradient from the one in fp32: in bf16, and with Liger's
    kernels.
    """
    options.token_budget = min(options.token_budget, 4096)  # fp32 has no packed attention kernel
    groups = episodes(config, options.token_budget, options.token_budget // 4, options.prompt, seed=0)
    exact: list[Tensor] = []
    print("| gradient | its distance from fp32, relative |")
    print("| --- | --- |")
    for name, precision, use_liger in (
        ("fp32", "fp32", False),
        ("bf16", "bf16", False),
        ("bf16, liger", "bf16", None),
    ):
        policy, is_fused = build_policy(options, config, ranks, use_liger=use_liger, precision=precision)
        step = UpdateStep(policy, None, ranks, LOSS, batch_settings(options))
        step.add(groups)
        step.finish()
        copies = [gradient.cpu() for gradient in gradients(policy)]
        exact = exact or copies
        squares = sum(float((a - b).double().square().sum()) for a, b in zip(copies, exact, strict=True))
        norm = sum(float(a.double().square().sum()) for a in exact)
        missing = ", not installed" if use_liger is None and not is_fused else ""
        print(f"| {name}{missing} | {(squares / norm) ** 0.5:.2e} |")
        del policy, step
        peak_gib(ranks.device)


def ours(options: argparse.Namespace, config: Qwen3Config, ranks: Ranks, groups: list[Group]) -> list[Result]:
    """The gradient of a whole mini-batch, and the optimizer's update."""
    precision = "bf16" if ranks.device.type == "cuda" else "fp32"
    policy, is_fused = build_policy(options, config, ranks, use_liger=options.liger, precision=precision)
    batch = batch_settings(options)
    numbers: dict[str, float] = {}

    def gradient(of: list[Group]) -> None:
        policy.zero_grad(set_to_none=True)
        step = UpdateStep(policy, None, ranks, LOSS, batch)
        for group in of:
            step.add([group])
        numbers.update(step.finish())

    warm_up = options.token_budget * ranks.world_size
    for seed in (1, 2):
        gradient(episodes(config, warm_up, options.longest, options.prompt, seed))
    peak_gib(ranks.device)
    seconds = timed(lambda: gradient(groups), ranks.device)
    tokens, flops = int(numbers["total_tokens"]), model_flops(config, groups)
    liger = "liger, " if is_fused else ""
    note = f"{liger}{numbers['micro_batches']:.0f} micro-batches per rank, loss {numbers['loss']:+.1e}"
    results = [Result("ours", seconds, tokens, flops, peak_gib(ranks.device), note)]
    if options.update:
        optimizer = AdamW(policy, OPTIMIZER, offload=options.offload_optimizer)
        optimizer.update()
        update_s = timed(optimizer.update, ranks.device)
        results.append(Result("ours, update", update_s, 0, 0.0, peak_gib(ranks.device), "AdamW step alone"))
    return results


def plain(options: argparse.Namespace, config: Qwen3Config, ranks: Ranks, groups: list[Group]) -> Result:
    """The same policy gradient as one would write it with transformers alone."""
    peak_gib(ranks.device)
    with ranks.device:
        model = build_model(config, activation_checkpointing=options.activation_checkpointing)
    model.set_attn_implementation("sdpa")
    segments = segments_of(groups)
    total = sum(int(segment.is_response.sum()) for segment in segments)

    def gradient(of: list[list[Segment]]) -> None:
        model.zero_grad(set_to_none=True)
        for rows in of:
            ids, is_real, is_response = (padded(rows, name, ranks.device) for name in ("ids", "real", "said"))
            with torch.autocast(ranks.device.type, torch.bfloat16, enabled=ranks.device.type == "cuda"):
                logits = model(input_ids=ids, attention_mask=is_real, use_cache=False).logits
            log_p = logits[:, :-1].float().log_softmax(-1)
            chosen = log_p.gather(2, ids[:, 1:, None]).squeeze(2)
            (-(chosen * is_response[:, 1:]).sum() / total).backward()

    batches = list(padded_batches(segments, options.token_budget))
    try:
        gradient(batches[:2])
        peak_gib(ranks.device)
        seconds = timed(lambda: gradient(batches), ranks.device)
    except torch.cuda.OutOfMemoryError:
        return Result("transformers", float("nan"), 0, 0.0, peak_gib(ranks.device), "out of memory")
    used = sum(max(map(len, rows)) * len(rows) for rows in batches)
    tokens = sum(map(len, segments))
    note = f"{len(batches)} micro-batches, {1 - tokens / used:.0%} padding"
    flops = model_flops(config, groups)
    return Result("transformers", seconds, tokens, flops, peak_gib(ranks.device), note)


def padded_batches(segments: list[Segment], token_budget: int) -> Iterator[list[Segment]]:
    """Cut rows in the order of arrival, as many as fit the budget with their padding."""
    rows: list[Segment] = []
    for segment in segments:
        longest = max(map(len, [*rows, segment]))
        if rows and longest * (len(rows) + 1) > token_budget:
            yield rows
            rows = []
        rows.append(segment)
    yield rows


def padded(rows: list[Segment], what: str, device: torch.device) -> Tensor:
    arrays = {
        "ids": [torch.as_tensor(row.token_ids).long() for row in rows],
        "real": [torch.ones(len(row), dtype=torch.long) for row in rows],
        "said": [torch.as_tensor(row.is_response) for row in rows],
    }
    return pad_sequence(arrays[what], batch_first=True).to(device)


def print_table(results: list[Result], rate: float, ranks: Ranks) -> None:
    print("| what | s | tokens/s | TFLOP/s per device | MFU | peak GiB | |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for r in results:
        devices = ranks.world_size if r.name.startswith("ours") else 1
        per_device = r.flops / r.seconds / devices
        speed = f"{r.tokens / r.seconds:,.0f} | {per_device / 1e12:.3g} | {per_device / rate:.1%}"
        cells = speed if r.tokens else "- | - | -"
        print(f"| {r.name} | {r.seconds:.2f} | {cells} | {r.peak_gib:.1f} | {r.note} |")


def add_step_options(parser: argparse.ArgumentParser, *, shapes: Iterable[str] = SHAPES) -> None:
    """Add the options of a step's work."""
    parser.add_argument("--shape", choices=shapes, default="tiny")
    parser.add_argument(
        "--token-budget", type=int, help="tokens of a micro-batch (default 16384; tiny: 1024)"
    )
    parser.add_argument("--micro-batches", type=int, default=8, help="a rank")
    parser.add_argument(
        "--longest", type=int, help="tokens of the longest episode (default: half the budget)"
    )
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--activation-checkpointing", type=float, default=1.0, help="share of the layers")
    parser.add_argument("--logits-chunk-tokens", type=int, default=2048)
    parser.add_argument("--compile-layers", action="store_true")
    parser.add_argument(
        "--no-liger", dest="liger", action="store_const", const=False, help="leave Liger's kernels out"
    )
    parser.add_argument("--offload-optimizer", action="store_true")


@contextmanager
def met_ranks(options: argparse.Namespace) -> Iterator[Ranks]:
    """Those that torchrun has started, or this process alone; fills in options that depend on the shape."""
    options.token_budget = options.token_budget or (1024 if options.shape == "tiny" else 16_384)
    options.longest = options.longest or options.token_budget // 2
    alone = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    with join_ranks(None, timeout_s=600) as ranks:
        yield ranks


def main() -> None:
    parser = FlagParser(description=__doc__)
    add_step_options(parser)
    parser.add_argument(
        "--compare", action="store_true", help="gradients in place of speed: fp32, bf16, Liger's kernels"
    )
    parser.add_argument("--no-update", dest="update", action="store_false", help="leave the optimizer out")
    parser.add_argument("--no-plain", dest="plain", action="store_false", help="leave transformers out")
    options = parser.parse_args()
    config = Qwen3Config(**SHAPES[options.shape], max_position_embeddings=40_960)
    with met_ranks(options) as ranks:
        (compare if options.compare else measure)(options, config, ranks)


def measure(options: argparse.Namespace, config: Qwen3Config, ranks: Ranks) -> None:
    torch.manual_seed(0)
    tokens = options.token_budget * options.micro_batches * ranks.world_size
    groups = episodes(config, tokens, options.longest, options.prompt, seed=0)
    rate = matmul_flops_per_s(ranks.device)
    results = ours(options, config, ranks, groups)
    if options.plain and ranks.world_size == 1:
        results.append(plain(options, config, ranks, groups))
    if ranks.rank != 0:
        return
    name = torch.cuda.get_device_name() if ranks.device.type == "cuda" else f"{os.cpu_count()} cores"
    segments = segments_of(groups)
    lengths = sorted(len(segment) for segment in segments)
    scored = sum(int(segment.is_response.sum()) for segment in segments)
    print(f"{ranks.world_size} × {name}, torch {torch.__version__}; bf16 matmul {rate / 1e12:.4g} TFLOP/s")
    print(
        f"Qwen3 {options.shape}, random weights; {len(lengths)} episodes, {sum(lengths):,} tokens "
        f"({scored:,} of responses), lengths {lengths[0]} … {lengths[len(lengths) // 2]} … {lengths[-1]}; "
        f"micro-batches of {options.token_budget:,}; {options.activation_checkpointing:.0%} of layers "
        f"checkpointed{', compiled' if options.compile_layers else ''}"
    )
    print_table(results, rate, ranks)


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
