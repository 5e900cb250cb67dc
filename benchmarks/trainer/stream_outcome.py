"""Reads the outcome of a run of the streaming loop from its logs, and makes its tables.

The runs are those of `benchmarks/trainer/stream_loop.py`.
"""

import json
import statistics
from dataclasses import dataclass

from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths

PRICE, RENTED_PRICE = 83.79 / 8, 5.32 / 2
"""Dollars an hour of a device that trains and of a rented one, as in RLBoost (arXiv:2510.19225)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    layout: str
    training: int
    """GPUs that the run saw; on a CPU the trainer's processes, each of which counts as a device."""
    renting: int
    """Devices."""
    seconds: list[float]
    """Seconds of each iteration, which ends when its version is published."""
    tokens: list[int]
    """Trained on, prompts included."""
    waiting: list[float]
    """Seconds in which the trainer had nothing to do."""
    window: list[float]
    """Seconds in which the trainer's own engine generated."""
    engines: list[int]
    """Others than that, at the end of the iteration."""
    recomputed: int
    prefilled: int
    lost: int

    @classmethod
    def of(cls, layout: str, paths: RunPaths, renting: int) -> "Outcome":
        records = list(metrics.read(paths.metrics))
        phases = list(metrics.read(paths.timeline))
        updates = [record for record in records if "update/tokens" in record]
        ends = [record["time"] - record["update/model_s"] for record in updates]
        starts = [min(phase["start"] for phase in phases if phase["name"] == "rollout"), *ends]
        rollouts = [record for record in records if "train/episodes" in record]
        lost = sum(r["train/episodes"] * (1 - r["train/completed_share"]) for r in rollouts)
        return cls(
            layout,
            training_devices(paths),
            renting,
            [end - start for start, end in zip(starts, ends, strict=False)],
            [int(record["update/tokens"]) for record in updates],
            [record["update/waiting_s"] for record in updates],
            [record.get("update/window_s", 0.0) for record in updates],
            [int(record["trainer/engines"]) for record in records if "trainer/engines" in record],
            int(sum(record["update/recomputed_tokens"] for record in updates)),
            int(sum(record["update/prefilled_again_tokens"] for record in updates)),
            round(lost),
        )

    def rates(self) -> list[float]:
        """Tokens per second of the iterations after the first, in which engines start."""
        return [t / s for t, s in zip(self.tokens[1:], self.seconds[1:], strict=True)]

    def rate(self) -> float:
        """Tokens per second of all these iterations: where two overlap, one is short and the other long."""
        return sum(self.tokens[1:]) / sum(self.seconds[1 : len(self.tokens)])

    @property
    def price(self) -> float:
        """Dollars an hour."""
        return self.training * PRICE + self.renting * RENTED_PRICE


def training_devices(paths: RunPaths) -> int:
    """Return the number of training devices, as the run's plan has it."""
    file = max(paths.run_dir("").glob("*/plan.json"), key=lambda path: path.stat().st_mtime)
    plan = json.loads(file.read_bytes())
    return int(plan["hardware"]["num_gpus"] or plan["config"]["trainer"]["nproc_per_node"] or 1)


def print_table(outcomes: list[Outcome]) -> None:
    base = next((o for o in outcomes if o.layout == "synchronous"), outcomes[0])
    heads = ["", "devices", "tokens/s", "each iteration", "beside synchronous", "tokens per $"]
    heads += ["waiting", "sampled again", "re-prefilled", "lost"]
    print("| " + " | ".join(heads) + " |")
    print("|" + " --- |" * len(heads))
    for o in outcomes:
        rate = o.rate()
        ratio = rate / base.rate()
        per_dollar = ratio * base.price / o.price
        each = " ".join(f"{r:,.0f}" for r in o.rates())
        waiting = statistics.median(w / s for w, s in zip(o.waiting[1:], o.seconds[1:], strict=True))
        speed = f"{rate:,.0f} | {each} | {ratio:.2f}x | {per_dollar:.2f}x | {waiting:.0%}"
        counts = f"{o.recomputed} | {o.prefilled:,} | {o.lost}"
        print(f"| {o.layout} | {o.training} + {o.renting} | {speed} | {counts} |", flush=True)


def print_iterations(outcome: Outcome, *, alone: int) -> None:
    """Print a run with engines that come and go; the first `alone` of those counted are the measure."""
    rate_alone = statistics.median(outcome.rates()[:alone])
    print("| iteration | engines at its end | tokens | s | tokens/s | beside alone | waiting | window s |")
    print("|" + " --- |" * 8)
    for i, rate in enumerate(outcome.rates(), 1):
        waited = f"{outcome.waiting[i] / outcome.seconds[i]:.0%} | {outcome.window[i]:.1f}"
        work = f"{outcome.tokens[i]:,} | {outcome.seconds[i]:.1f} | {rate:,.0f} | {rate / rate_alone:.2f}x"
        print(f"| {i + 1} | {outcome.engines[i]} | {work} | {waited} |")
    counts = (
        f"{outcome.recomputed} tokens sampled again, {outcome.prefilled:,} re-prefilled, {outcome.lost} lost"
    )
    print(f"{outcome.layout}: {counts}", flush=True)
