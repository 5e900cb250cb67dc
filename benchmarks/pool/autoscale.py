"""Compares machines rented by `pool.scale` with fleets of every fixed size, in virtual time.

    python benchmarks/pool/autoscale.py                    two trainers, three seeds: minutes
    python benchmarks/pool/autoscale.py --trainers small --seeds 1 --growth 0

The same iterations, with responses that grow from one to the next, are trained on by each fleet; machines can
be had, and are lost without a notice, as `traces/aws_p3_12h.csv` says (see `what_if.py`). A fixed fleet has
its number whenever the trace has so many; the autoscaled one what `decide_wanted` asks for. A dollar pays the
trainer, too. `at its speed`: the fixed fleet with most tokens per dollar of those that are at least 98 % as
fast as the autoscaled one; `of all`: of all fixed fleets, which is known in hindsight only.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.simulation.config import read_config, scenario_of
from rl_agent.simulation.scenario import FIXED, Outcome, simulate
from rl_agent.simulation.spot import read_trace
from rl_agent.system.flag_parser import FlagParser
from tests.support.pool_setup import later_wins

RECORDED = Path(__file__).parent / "traces" / "aws_p3_12h.csv"
TRAINERS = {
    "small": ("trainer_gpus=2", "trainer_price=20.95"),
    "large": ("trainer_gpus=8", "trainer_price=83.79"),
}
"""GPUs and dollars per hour; an engine has 2 GPUs for 5.32."""
WORK = ("model=8b", "prompts=64", "mean_tokens=600", "max_staleness=1", "chunk=64", "hours=11.5")
SIZES = (1, 2, 3, 4, 6, 8, 10, 12)
EQUAL = 0.98


@dataclass(frozen=True, slots=True)
class Played:
    """A fleet's figures over all seeds."""

    name: str
    outcomes: tuple[Outcome, ...]

    @property
    def tokens_per_s(self) -> float:
        return mean(each.tokens_per_s for each in self.outcomes)

    @property
    def tokens_per_dollar(self) -> float:
        return mean(1e6 / each.cost_per_million_tokens for each in self.outcomes)

    def row(self) -> str:
        seeds = self.outcomes
        return (
            f"{self.name:<12} {mean(o.engines for o in seeds):>8.1f} {mean(o.hours for o in seeds):>7.2f}"
            f" {self.tokens_per_s:>10,.0f} {self.tokens_per_dollar / 1e3:>10,.0f}"
            f" {mean(o.waiting_share for o in seeds):>7.0%} {mean(o.engines_idle_share for o in seeds):>6.0%}"
            f" {mean(o.engine_deaths for o in seeds):>7.1f}"
        )


def limit_dollars(outcomes: Iterable[Outcome], trainer_price: float, engine_price: float) -> float:
    """The work that no fleet avoids: the fastest's trainer, and the engines that lost no time."""
    played = list(outcomes)
    working_h = min(outcome.hours * outcome.engines * (1 - outcome.engines_idle_share) for outcome in played)
    return min(outcome.hours for outcome in played) * trainer_price + working_h * engine_price


def play(name: str, seeds: int, words: list[str], iterations: int) -> Played | None:
    """Play one fleet with each seed; None if the trace ends before the work does."""
    trace = read_trace(RECORDED.read_text().splitlines(), str(RECORDED))
    outcomes = []
    for seed in range(seeds):
        config = read_config(later_wins((*WORK, *words, f"iterations={iterations}", f"seed={seed}")))
        played_outcomes = simulate(scenario_of(config, trace, str(RECORDED)), name)
        if played_outcomes is None or played_outcomes.iterations < iterations:
            return None
        outcomes.append(played_outcomes)
    return Played(name, tuple(outcomes))


def table(trainer: str, seeds: int, words: list[str], iterations: int, sizes: list[int]) -> None:
    print(f"\n{trainer} trainer: {' '.join(TRAINERS[trainer])}, {iterations} iterations, {seeds} seeds")
    print("fleet        machines   hours   tokens/s  thousand/$   waits   idle  deaths")
    fixed = []
    for size in sizes:
        played_outcomes = play(f"{FIXED}{size}", seeds, words, iterations)
        if played_outcomes is None:
            print(f"{FIXED}{size:<6} is not done when the trace ends", flush=True)
            continue
        fixed.append(played_outcomes)
        print(played_outcomes.row(), flush=True)
    scaled = play("autoscaled", seeds, words, iterations)
    if scaled is None or not fixed:
        raise SystemExit("the trace ends before the work is done: fewer --iterations")
    print(scaled.row(), flush=True)
    best = max(fixed, key=lambda outcome: outcome.tokens_per_dollar)
    as_fast = [outcome for outcome in fixed if outcome.tokens_per_s >= EQUAL * scaled.tokens_per_s]
    for label, rival in (
        ("of all", best),
        ("at its speed", max(as_fast, key=lambda o: o.tokens_per_dollar) if as_fast else None),
    ):
        if rival is None:
            print(f"{label:<12} no fixed fleet is as fast")
            continue
        gain = scaled.tokens_per_dollar / rival.tokens_per_dollar - 1
        faster = scaled.tokens_per_s / rival.tokens_per_s - 1
        print(
            f"{label:<12} {rival.name}: autoscaled has {gain:+.1%} tokens per dollar, {faster:+.1%} tokens/s"
        )
    config = read_config(later_wins((*WORK, *words)))
    best_dollars = limit = 0.0
    for of_seed in zip(*(outcome.outcomes for outcome in (*fixed, scaled)), strict=True):
        limit += limit_dollars(of_seed, config.trainer_price, config.engine_price)
        outcome = of_seed[fixed.index(best)]
        best_dollars += outcome.hours * (config.trainer_price + outcome.engines * config.engine_price)
    print(
        f"{'limit':<12} {best_dollars / limit - 1:+.1%} tokens per dollar over {best.name}, for any decision"
    )


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=list(TRAINERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="of the fixed fleets")
    parser.add_argument("--iterations", type=int, default=80)
    parser.add_argument(
        "--growth", type=float, default=0.035, help="of lengths, from one iteration to the next"
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="as what-if takes them")
    options = parser.parse_intermixed_args()
    for trainer in options.trainers:
        words = [*TRAINERS[trainer], f"length_growth={options.growth}", *options.words]
        table(trainer, options.seeds, words, options.iterations, options.sizes)
    return 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
