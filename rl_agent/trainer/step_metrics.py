"""Metrics of a whole mini-batch, over all micro-batches and ranks.

Token metrics are sums over all response tokens, divided at the end; nothing is a mean of means, so they do
not depend on how the mini-batch was cut.
"""

import torch
from torch import Tensor

from rl_agent.trainer.losses import MAX_LOG_RATIO
from rl_agent.trainer.parallel import Ranks
from rl_agent.trainer.samples import Sample


class StepMetrics:
    """Collects on the device; `finish` is the only place that waits for it."""

    def __init__(self, ranks: Ranks) -> None:
        self.micro_batches = 0
        self._ranks = ranks
        self._sums: dict[str, Tensor] = {}
        self._ratio_max = torch.zeros((), dtype=torch.float64, device=ranks.device)
        self._samples: list[Sample] = []
        self._advantages: list[float] = []

    def add_sample(self, sample: Sample, advantage: float) -> None:
        """Every rank adds all samples."""
        self._samples.append(sample)
        self._advantages.append(advantage)

    def add_tokens(self, name: str, values: Tensor) -> None:
        """A value of each response token of this rank; its mean becomes the metric of that name."""
        zero = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
        self._sums[name] = self._sums.get(name, zero) + values.detach().double().sum()

    def add_loss(self, weighted: Tensor) -> None:
        """Weighted token losses; their sum is divided as the gradient is."""
        self.add_tokens("loss", weighted)

    def add_ratio(self, ratio: Tensor) -> None:
        self.add_tokens("ratio", ratio)
        if len(ratio):
            self._ratio_max = torch.maximum(self._ratio_max, ratio.detach().double().max())

    def add_mismatch(self, logprobs: Tensor, behaviour: Tensor) -> None:
        """How far the engine's policy is from this one: KL(μ‖π), and the mean absolute difference."""
        difference = (logprobs.detach() - behaviour).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        self.add_tokens("behaviour_kl", torch.expm1(difference) - difference)
        self.add_tokens("logprob_difference", difference.abs())

    def finish(self, divisor: float) -> dict[str, float]:
        """Of the whole mini-batch; `divisor` is the loss's."""
        names = sorted(self._sums)
        sums = torch.stack([self._sums[name] for name in names]) if names else torch.zeros(0)
        if names:
            self._ranks.sum_over_world(sums)
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
            "advantage_magnitude": sum(map(abs, self._advantages)) / episodes,
            "episodes": len(self._samples),
            "response_tokens": sum(lengths),
            "response_length": sum(lengths) / episodes,
            "response_length_max": max(lengths, default=0),
            "total_tokens": sum(len(segment) for s in self._samples for segment in s.segments),
            "micro_batches": self.micro_batches,
        }


class IterationMetrics:
    """What the steps of an iteration add up to."""

    def __init__(self) -> None:
        self._steps: list[dict[str, float]] = []

    def add(self, numbers: dict[str, float]) -> None:
        """The metrics of one step."""
        self._steps.append(numbers)

    def numbers(self) -> dict[str, float]:
        """None of the means where no step was made."""
        steps = self._steps
        sums = {"samples": "episodes", "tokens": "total_tokens", "train_s": "seconds/step"}
        found = {name: sum(step[key] for step in steps) for name, key in sums.items()}
        found |= {"steps": float(len(steps)), "waiting_s": sum(step["seconds/waiting"] for step in steps)}
        if steps:
            found |= {key: sum(step[key] for step in steps) / len(steps) for key in ("loss", "grad_norm")}
            found["learning_rate"] = steps[-1]["learning_rate"]
        return found
