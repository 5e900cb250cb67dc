"""Tokens computed and seconds of a gradient with the prompt of siblings once, beside a copy each.

    python benchmarks/trainer/shared_prompts.py                                  a tiny model, on a CPU
    python benchmarks/trainer/shared_prompts.py --shape 1.7b                     one GPU
    python benchmarks/trainer/shared_prompts.py --model FOLDER --case 101:31     a model of your own

Each case is PROMPT:ANSWER, in tokens; answers have half to one and a half times that many. Tokens are random,
and so are weights without --model: this measures speed and exactness, never learning. Both ways take the
same groups through `UpdateStep`, in turns, and the fastest of --repeats counts. Seconds on a CPU are
those in which cores were busy with it. What a step is (--token-budget, --logits-chunk-tokens,
--activation-checkpointing, …) is said as to throughput.py.

The second table has one group's log-probabilities and gradient both ways, and how far they are from those in
fp32 with a copy each. The script fails if more is computed than prompts once, one more for each micro-batch,
or if a prompt computed once is further from fp32 than copies are by half.
"""

import argparse
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from qwen3_shapes import SHAPES
from throughput import (
    GROUP_SIZE,
    LOSS,
    add_step_options,
    batch_settings,
    build_policy,
    met_ranks,
    peak_gib,
    segments_of,
    synchronize,
)
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, Qwen3Config

from rl_agent.system.flag_parser import FlagParser
from rl_agent.trainer.grpo.data.batch import Row, pack
from rl_agent.trainer.grpo.data.samples import Group, Segment, TrainingSample, Versions
from rl_agent.trainer.grpo.model.parallel import Ranks, gradients
from rl_agent.trainer.grpo.model.policy import PolicyModel
from rl_agent.trainer.grpo.step.update_step import UpdateStep

WAYS = {"a copy each": False, "once": True}


@dataclass(frozen=True, slots=True)
class Case:
    """Lengths in tokens."""

    prompt: int
    answer: int

    def __str__(self) -> str:
        return f"{self.prompt} + {GROUP_SIZE} × {self.answer}"

    @classmethod
    def of(cls, text: str) -> "Case":
        prompt, answer = map(int, text.split(":"))
        return cls(prompt, answer)

    def groups(self, count: int, vocabulary: int) -> list[Group]:
        generator = np.random.default_rng(0)
        groups = []
        for index in range(count):
            prompt = generator.integers(0, vocabulary, self.prompt)
            samples = [self._sample(generator, prompt, vocabulary) for _ in range(GROUP_SIZE)]
            groups.append(Group(str(index), tuple(samples)))
        return groups

    def _sample(self, generator: np.random.Generator, prompt: np.ndarray, vocabulary: int) -> TrainingSample:
        length = int(generator.integers(max(1, self.answer // 2), self.answer * 3 // 2 + 1))
        answer = generator.integers(0, vocabulary, length)
        segment = Segment(
            np.concatenate([prompt, answer]).astype(np.int32),
            np.arange(self.prompt + length) >= self.prompt,
            np.full(self.prompt + length, -np.log(vocabulary), np.float32),
        )
        return TrainingSample("", (segment,), float(generator.random()), Versions(0, 0))


def measure(options: argparse.Namespace, case: Case, policy: PolicyModel, ranks: Ranks) -> None:
    """Print a row for each way."""
    groups = case.groups(options.groups, policy.vocabulary)
    clock = time.perf_counter if ranks.device.type == "cuda" else time.process_time
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    numbers: dict[str, dict[str, float]] = {}
    memory: dict[str, float] = {}
    for _ in range(options.repeats + 1):  # the first warms up
        for way, policy.shares_prefixes in WAYS.items():
            peak_gib(ranks.device)
            started = clock()
            numbers[way] = gradient(options, policy, ranks, groups)
            synchronize(ranks.device)
            seconds[way].append(clock() - started)
            memory[way] = peak_gib(ranks.device)
    total = sum(map(len, segments_of(groups)))
    least = total - options.groups * (GROUP_SIZE - 1) * case.prompt
    copies = numbers["once"]["micro_batches"] * ranks.world_size  # a group may be in two micro-batches
    assert numbers["a copy each"]["computed_tokens"] == total
    assert numbers["once"]["computed_tokens"] <= least + copies * case.prompt
    if ranks.rank != 0:
        return
    fastest = {way: min(times[1:]) for way, times in seconds.items()}
    for way, of in numbers.items():
        speed = (
            f"{fastest[way]:.2f} | {fastest['a copy each'] / fastest[way]:.2f} | {total / fastest[way]:,.0f}"
        )
        work = f"{of['computed_tokens']:,.0f} | {of['micro_batches']:.0f}"
        print(f"| {case} | {way} | {work} | {speed} | {memory[way]:.1f} |", flush=True)


def gradient(
    options: argparse.Namespace, policy: PolicyModel, ranks: Ranks, groups: list[Group]
) -> dict[str, float]:
    policy.zero_grad(set_to_none=True)
    step = UpdateStep(policy, None, ranks, LOSS, batch_settings(options))
    for group in groups:
        step.add([group])
    return step.finish()


def compare(options: argparse.Namespace, case: Case, policies: dict[str, PolicyModel], ranks: Ranks) -> None:
    """Print how far one group's numbers are from those in fp32 with a copy for each."""
    exact: list[Tensor] = []
    for precision, policy in policies.items():
        (group,) = case.groups(1, policy.vocabulary)
        rows = [Row(segment, 0.0, 1, 0) for segment in segments_of([group])]
        least = 1e-4 if precision == "fp32" else 0.0
        distances: list[list[float]] = []
        for way, policy.shares_prefixes in WAYS.items():
            policy.zero_grad(set_to_none=True)  # a pass without gradients leaves FSDP's weights gathered
            with torch.no_grad():
                logprobs, _ = policy(pack(rows, ranks.device, shares=policy.shares_prefixes))
            gradient(options, policy, ranks, [group])
            numbers = [logprobs, *(part.clone() for part in gradients(policy))]
            exact = exact or numbers
            off = (logprobs - exact[0]).abs()
            squares = sum(float((a - b).square().sum()) for a, b in zip(numbers[1:], exact[1:], strict=True))
            relative = (squares / sum(float(part.square().sum()) for part in exact[1:])) ** 0.5
            distances.append([float(off.mean()), relative])
            print(f"| {case} | {precision} | {way} | {off.mean():.1e} ({off.max():.1e}) | {relative:.1e} |")
        for apart, shared in zip(*distances, strict=True):
            assert shared <= max(1.5 * apart, least), "a prompt that is computed once changes numbers"


def main() -> None:
    parser = FlagParser(description=__doc__)
    add_step_options(parser)
    parser.add_argument("--model", type=Path, help="a model's folder, in place of random weights")
    parser.add_argument("--case", action="append", help="PROMPT:ANSWER (default: 1024:256 and 512:64)")
    parser.add_argument("--groups", type=int, default=16, help="of 8 siblings")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    cases = [Case.of(text) for text in options.case or ("1024:256", "512:64")]
    config: PretrainedConfig = Qwen3Config(**SHAPES[options.shape], max_position_embeddings=40_960)
    weights = None
    if options.model is not None:
        config = AutoConfig.from_pretrained(options.model)
        weights = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).state_dict()
    torch.manual_seed(0)
    with met_ranks(options) as ranks:
        is_cuda = ranks.device.type == "cuda"
        build = partial(build_policy, options, config, ranks, use_liger=options.liger, weights=weights)
        policies = {precision: build(precision=precision)[0] for precision in ("fp32", "bf16")[: 1 + is_cuda]}
        if ranks.rank == 0:
            name = torch.cuda.get_device_name() if is_cuda else f"{os.cpu_count()} cores"
            print(
                f"{ranks.world_size} × {name}, torch {torch.__version__}; {options.model or options.shape};"
                f" {options.groups} groups of {GROUP_SIZE}; micro-batches of {options.token_budget:,};"
                f" {options.activation_checkpointing:.0%} of layers checkpointed\n"
            )
            print(
                "| siblings | prompt | tokens computed | micro-batches | s | faster | tokens/s | peak GiB |"
            )
            print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for case in cases:
            measure(options, case, list(policies.values())[-1], ranks)
        print("\n| siblings | precision | prompt | logprob off by (at most) | gradient off by, relative |")
        print("| --- | --- | --- | --- | --- |")
        for case in cases:
            compare(options, case, policies, ranks)


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
