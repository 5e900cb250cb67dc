"""Collects metrics of a whole mini-batch, over all micro-batches and ranks.

Token metrics are sums over all response tokens, divided at the end; nothing is a mean of means, so they do
not depend on how the mini-batch was cut.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rl_agent.config.sections.grpo import LossSettings
from rl_agent.monitor.flops import BACKWARD, FORWARD, ModelShape, training_flops
from rl_agent.trainer.grpo.data.samples import Group, TrainingSample
from rl_agent.trainer.grpo.model.parallel import Ranks
from rl_agent.trainer.grpo.step.losses import MAX_LOG_RATIO


class StepMetrics:
    """Collects metrics on the device; `finish` is the only place that waits for it."""

    def __init__(self, ranks: Ranks) -> None:
        self.micro_batches = 0
        self._ranks = ranks
        self._sums: dict[str, Tensor] = {}
        self._ratio_max = torch.zeros((), dtype=torch.float64, device=ranks.device)
        self._samples: list[TrainingSample] = []
        self._advantages: list[float] = []
        self._penalties: list[float] = []
        self._cut: list[bool] = []

    def add_sample(self, sample: TrainingSample, advantage: float) -> None:
        """Add a sample; every rank adds all samples."""
        self._samples.append(sample)
        self._advantages.append(advantage)

    def advantage_deviation(self) -> float:
        """Return the deviation of the advantages of the samples so far, by n − 1."""
        return statistics.stdev(self._advantages) if len(self._advantages) > 1 else 0.0

    def add_length(self, penalty: float, *, is_cut: bool) -> None:
        """Add an episode of the step, masked ones included; every rank adds all."""
        self._penalties.append(penalty)
        self._cut.append(is_cut)

    def add_tokens(self, name: str, values: Tensor) -> None:
        """Add a value of each response token of this rank; its mean becomes the metric of that name.

        The sum of `loss`, weighted token losses, is divided as the gradient is.
        """
        zero = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
        self._sums[name] = self._sums.get(name, zero) + values.detach().double().sum()

    def add_known_tokens(self, name: str, sums: Tensor) -> None:
        """Add sums over response tokens that every rank has; their mean becomes the metric of that name."""
        self.add_tokens(name, (sums if self._ranks.rank == 0 else sums[:0]).to(self._ranks.device))

    def add_ratio(self, ratio: Tensor) -> None:
        self.add_tokens("ratio", ratio)
        if len(ratio):
            self._ratio_max = torch.maximum(self._ratio_max, ratio.detach().double().max())

    def add_mismatch(self, logprobs: Tensor, behaviour: Tensor) -> None:
        """Add how far the engine's policy is from this one: KL(μ‖π), and the mean absolute difference."""
        difference = (logprobs.detach() - behaviour).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        self.add_tokens("behaviour_kl", torch.expm1(difference) - difference)
        self.add_tokens("logprob_difference", difference.abs())

    def finish(self, divisor: float) -> dict[str, float]:
        """Return the metrics of the whole mini-batch; `divisor` is the loss's."""
        names = sorted(self._sums)
        sums = torch.stack([self._sums[name] for name in names]) if names else torch.zeros(0)
        if names:
            self._ranks.sum(sums)
        self._ranks.max_over_world(self._ratio_max)
        lengths = [sample.response_tokens for sample in self._samples]
        tokens = max(sum(lengths), 1)
        means = {name: total / tokens for name, total in zip(names, sums.tolist(), strict=True)}
        if "loss" in means:
            means["loss"] *= tokens / divisor
        episodes = max(len(self._samples), 1)
        return means | {
            "ratio_max": self._ratio_max.item(),
            "reward": sum(sample.reward for sample in self._samples) / episodes,
            "length_penalty": sum(self._penalties) / max(len(self._penalties), 1),
            "cut_share": sum(self._cut) / max(len(self._cut), 1),
            "advantage_magnitude": sum(map(abs, self._advantages)) / episodes,
            "episodes": len(self._samples),
            "response_tokens": sum(lengths),
            "response_length": sum(lengths) / episodes,
            "response_length_max": max(lengths, default=0),
            "total_tokens": sum(len(segment) for s in self._samples for segment in s.segments),
            "micro_batches": self.micro_batches,
        }


@dataclass(frozen=True, slots=True)
class Speedometer:
    """Measures how much of its devices a trainer uses, as far as shape and peak rate are known."""

    shape: ModelShape | None
    passes: int
    devices: int
    peak_flops_per_s: float | None
    """The peak of one device."""
    is_frozen: bool = False
    """An adapter is trained in place of the weights."""

    @staticmethod
    def passes_of(loss: LossSettings) -> int:
        """Return the number of forward and backward passes, those that a KL term demands included."""
        more = {"none": 0, "loss": FORWARD, "reward": 2 * FORWARD}
        return FORWARD + BACKWARD + more[loss.kl_in]

    def numbers(
        self,
        groups: list[Group],
        seconds: Mapping[str, float],
        *,
        more_passes: int = 0,
        shared_prefixes: Iterable[int] = (),
    ) -> dict[str, float]:
        """Compute metrics of a step that trained on these groups; `seconds` by part.

        `shared_prefixes` are the lengths of those that were not computed again.
        """
        segments = [segment for group in groups for sample in group.trained for segment in sample.segments]
        tokens = sum(map(len, segments))
        step_s = max(seconds["step"], 1e-9)
        numbers = {
            "tokens_per_s": tokens / step_s,
            "tokens_per_s_per_device": tokens / step_s / self.devices,
            "waiting_share": seconds["waiting"] / step_s,
        }
        if self.shape is None:
            return numbers
        sequences = [(len(segment), int(segment.is_response.sum())) for segment in segments]
        passes = self.passes + more_passes
        count = partial(training_flops, self.shape, passes=passes, is_frozen=self.is_frozen)
        flops = count(sequences) - count((length, 0) for length in shared_prefixes)
        busy_s = max(seconds["gradient"] + seconds["update"], 1e-9)
        rate = flops / busy_s / self.devices
        numbers |= {"flops": flops, "tflops_per_s_per_device": rate / 1e12}
        if self.peak_flops_per_s is not None:
            numbers["mfu"] = rate / self.peak_flops_per_s
        return numbers


def log_line(step: int, numbers: Mapping[str, float]) -> str:
    """Describe one optimizer step in one line; what is not known is left out."""
    seconds = {name: numbers[f"seconds/{name}"] for name in ("step", "waiting", "gradient", "update")}
    is_less = numbers["computed_tokens"] < numbers["total_tokens"]
    computed = f" ({numbers['computed_tokens']:,.0f} computed)" if is_less else ""
    parts = [
        f"step {step}: reward {numbers['reward']:.3f}",
        f"entropy {numbers['entropy']:.3f}",
        f"{numbers['total_tokens']:,.0f} tokens{computed} in {seconds['step']:.1f} s"
        f" (waiting {seconds['waiting']:.1f}, gradient {seconds['gradient']:.1f},"
        f" update {seconds['update']:.1f})",
        f"{numbers['tokens_per_s']:,.0f} tokens/s",
    ]
    if numbers["tokens_per_s"] != numbers["tokens_per_s_per_device"]:
        parts[-1] += f" ({numbers['tokens_per_s_per_device']:,.0f} per device)"
    if "mfu" in numbers:
        parts.append(f"MFU {numbers['mfu']:.1%}")
    ages = {key.removeprefix("staleness/"): n for key, n in numbers.items() if key.startswith("staleness/")}
    updates = numbers.get("updates_since_sampling", 0)
    since = f", ≤ {updates:.0f} optimizer steps" if updates else ""
    counts = ", ".join(f"{n:.0f} episodes at {age} versions" for age, n in ages.items())
    parts.append(f"staleness: {counts}{since}")
    if "engines" in numbers:
        idle = f" (idle {numbers['engines_idle_share']:.0%})" if "engines_idle_share" in numbers else ""
        parts.append(f"{numbers['engines']:.0f} engines{idle}")
        parts.append(f"{numbers['recomputed_tokens']:,.0f} tokens recomputed")
    if "cost" in numbers:
        each = numbers.get("cost_per_million_tokens")
        parts.append(f"${numbers['cost']:.4f}" + (f" (${each:.2f} per million tokens)" if each else ""))
    return ", ".join(parts)


_SUMS = {
    "samples": "episodes",
    "tokens": "total_tokens",
    "train_s": "seconds/step",
    "waiting_s": "seconds/waiting",
    "flops": "flops",
    "engines_idle_s": "engines_idle_s",
    "engines_draining_s": "engines_draining_s",
    "recomputed_tokens": "recomputed_tokens",
    "prefilled_again_tokens": "prefilled_again_tokens",
    "cost": "cost",
}
"""Maps a metric of an iteration to those of its steps; one that no step has is left out."""


STEP = "update_step"
OF_EVERY_TRAINER = ("loss", "grad_norm", "learning_rate")
"""Metrics that steps of every kind of trainer have: `update_step/loss`, …"""


class IterationMetrics:
    """The sums and means over the steps of an iteration."""

    def __init__(self) -> None:
        self._steps: list[dict[str, float]] = []

    def add(self, numbers: dict[str, float]) -> None:
        """Add the metrics of one step."""
        self._steps.append(numbers)

    def recall(self, records: Iterable[Mapping[str, Any]], *, iteration: int, last: int) -> None:
        """Add the steps up to `last` that an earlier start has recorded; what was repeated counts once.

        A step with a number that was not finite lacks it in its record, and is passed over.
        """
        steps = {
            record[STEP]: record
            for record in records
            if record.get("iteration") == iteration
            and record.get(STEP, last + 1) <= last
            and all(f"{STEP}/{name}" in record for name in OF_EVERY_TRAINER)
        }
        for step in sorted(steps):
            self.add({key.partition("/")[2]: value for key, value in steps[step].items() if "/" in key})

    def numbers(self) -> dict[str, float]:
        """Compute the sums and means of the iteration; no means where no step was made."""
        steps = self._steps
        if not steps:
            return {"steps": 0.0}
        numbers = {
            name: sum(step.get(key, 0.0) for step in steps)
            for name, key in _SUMS.items()
            if any(key in step for step in steps)
        }
        numbers["steps"] = float(len(steps))
        numbers |= {key: sum(step[key] for step in steps) / len(steps) for key in ("loss", "grad_norm")}
        numbers["learning_rate"] = steps[-1]["learning_rate"]
        numbers["waiting_share"] = numbers["waiting_s"] / max(numbers["train_s"], 1e-9)
        busy = [
            (step["mfu"], step["seconds/step"] - step["seconds/waiting"]) for step in steps if "mfu" in step
        ]
        if busy:
            busy_s = sum(seconds for _, seconds in busy)
            numbers["mfu"] = sum(mfu * seconds for mfu, seconds in busy) / max(busy_s, 1e-9)
        if "cost" in numbers:
            numbers["cost_per_million_tokens"] = 1e6 * numbers["cost"] / max(numbers["tokens"], 1)
        return numbers
