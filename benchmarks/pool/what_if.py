"""Predicts machines rented at the scale of the RLBoost paper, and checks the simulation.

    python benchmarks/pool/what_if.py                     three models, 12 hours, all setups: minutes
    python benchmarks/pool/what_if.py --hours 1 --models 8b
    python benchmarks/pool/what_if.py --trace drawn       machines come and go at random instead
    python benchmarks/pool/what_if.py --check             the same traces over a real manager, in real time
    python benchmarks/pool/what_if.py --check --turns 4   episodes of four turns, with pauses between them

All but the last are `rl_agent.cli what-if` for several models at the paper's prices. Machines come and go as
`traces/aws_p3_12h.csv` says: every fourth of those that a fleet of up to 32 spot machines (p3.2xlarge, AWS)
had within 12 hours; recorded for Parcae (Duan et al., NSDI 2024, arXiv 2403.14097), there it is
`liveput/traces/p3trace.csv`. Whether a loss was announced is not recorded: here none is.

The last one plays small traces twice: a real manager with its HTTP, timers and leases and engines that send
their tokens over loopback at a fixed rate, and `rl_agent/simulation` with the same rate. Machines come,
vanish (their connections stay open, nothing answers) and leave after a notice. Compared is when episodes
have ended. Turns share the tokens that an episode of one turn has; the environment takes two seconds after
each but the last, on average, log-normal.
"""

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.pool.scheduler.records import Order, PoolRules, Request, RequestId
from rl_agent.pool.settings import load_settings, rules_of
from rl_agent.simulation.config import read_config, scenario_of, trace_of
from rl_agent.simulation.scenario import SETUPS, Outcome, simulate
from rl_agent.simulation.speeds import EngineSpeed
from rl_agent.simulation.spot import Change, read_trace
from rl_agent.simulation.world import RentedPool
from rl_agent.system.flag_parser import FlagParser
from tests.support.pool_setup import Client, item, later_wins, manager
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import Served, StreamingEngine, start_engine

PAPER = {
    "8b": (("trainer_gpus=8", "trainer_price=83.79"), "1.66x, +34%"),
    "14b": (("trainer_gpus=8", "trainer_price=83.79"), "1.97x, +49%"),
    "32b": (("trainer_gpus=16", "trainer_price=167.58"), "1.51x, +28%"),
}
"""A fleet's trainer and its result: throughput and tokens per dollar against taking turns."""

RECORDED = Path(__file__).parent / "traces" / "aws_p3_12h.csv"
DRAWN = "drawn"

REAL_WORDS = ("lease_s=3", "heartbeat_s=0.5", "probe_interval_s=0.5", "stall_timeout_s=20")
TOKENS_PER_S = 40.0
CHUNK = 8
CAPACITY = 12
PAUSE_S = 2.0


COLUMNS = (
    f"{'model':<6} {'setup':<17} machines steps tokens/s        $/step $/M tokens      "
    "    lost tokens   re-read  waits  idle"
)


def paper_table(models: list[str], trace: str, words: list[str]) -> None:
    recorded = None if trace == DRAWN else read_trace(Path(trace).read_text().splitlines(), trace)
    print(COLUMNS)
    for model in models:
        config = read_config(later_wins((f"model={model}", *PAPER[model][0], *words)))
        scenario = scenario_of(config, recorded or trace_of(config), trace)
        first: Outcome | None = None
        for setup in SETUPS:
            outcome = simulate(scenario, setup)
            if outcome is None:
                raise SystemExit(f"{model}, {setup}: not one iteration ended")
            first = first or outcome
            print(row(model, outcome, first), flush=True)
        print(f"{model:<6} the paper          {PAPER[model][1]}", flush=True)


def row(model: str, outcome: Outcome, first: Outcome) -> str:
    faster = outcome.tokens_per_s / first.tokens_per_s
    per_dollar = first.cost_per_million_tokens / outcome.cost_per_million_tokens - 1
    cells = (
        f"{model:<6} {outcome.setup:<17} {outcome.engines:>8.1f} {outcome.iterations:>5}",
        f"{outcome.tokens_per_s:>8,.0f} {faster:>5.2f}x {outcome.cost_per_step:>7.2f}",
        f"{outcome.cost_per_million_tokens:>10.3f} {per_dollar:>+5.0%}",
        f"{outcome.lost_tokens / 1e6:>6.2f}M {outcome.lost_share:>6.2%}",
        f"{outcome.prefilled_again_tokens / 1e6:>7.1f}M",
        f"{outcome.waiting_share:>6.0%} {outcome.engines_idle_share:>5.0%}",
    )
    return " ".join(cells)


def small_trace(seed: int) -> list[Change]:
    """Two machines at first; in the first half minute one comes, one vanishes, one leaves after a notice."""
    random_ = random.Random(seed)
    comes, vanishes, leaves, returns = sorted(random_.uniform(2.0, 25.0) for _ in range(4))
    return [
        Change(0.0, is_join=True),
        Change(0.0, is_join=True),
        Change(comes, is_join=True),
        Change(vanishes, is_join=False),
        Change(leaves, is_join=False, with_notice=True),
        Change(returns, is_join=True),
    ]


Episodes = list[list[tuple[int, float]]]


def episodes_of(seed: int, turns: int) -> Episodes:
    """Return the turns of each episode: the tokens of a response, and the seconds after it."""
    random_ = random.Random(f"lengths:{seed}")

    def turn() -> tuple[int, float]:
        length = CHUNK * max(2, min(150, round(45 / turns * random_.lognormvariate(0, 0.8))))
        return length, PAUSE_S * random_.lognormvariate(-0.32, 0.8) if turns > 1 else 0.0

    return [[turn() for _ in range(turns)] for _ in range(96)]


def simulated(rules: PoolRules, trace: list[Change], episodes: Episodes) -> tuple[list[float], int]:
    """The end of each episode, and the number of requests that were moved."""
    ends: list[float] = []

    def ask(number: int, turn: int) -> None:
        order = Order(RequestId("run", f"r{number}-{turn}"), (0,), 4096, {}, 1e9)
        world.submit(order, episodes[number][turn][0] // CHUNK)

    def on_ended(request: Request) -> None:
        number, turn = map(int, request.request_id.name[1:].split("-"))
        if turn + 1 == len(episodes[number]):
            ends.append(world.now)
        else:
            world.at(world.now + episodes[number][turn][1], lambda: ask(number, turn + 1))

    world = RentedPool(rules=rules, chunk=CHUNK, on_ended=on_ended)
    speed = EngineSpeed(1 / TOKENS_PER_S, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, CAPACITY)
    for number, change in enumerate(trace):
        if change.is_join:
            world.at(change.at_s, lambda name=f"e{number}": world.rent(name, speed))  # type: ignore[misc]
        else:
            world.at(change.at_s, lambda told=change.with_notice: world.lose(with_notice=told))  # type: ignore[misc]
    world.run(0.0)
    for number in range(len(episodes)):
        ask(number, 0)
    while len(ends) < len(episodes):
        world.run(world.now + 1.0)
    return ends, world.state.account.moves


async def measured(trace: list[Change], episodes: Episodes) -> tuple[list[float], int]:
    """The same over HTTP."""
    engines: list[Served] = []
    try:
        async with manager(*REAL_WORDS, f"stream_interval={CHUNK}") as pool, asyncio.TaskGroup() as jobs:
            began = time.monotonic()
            player = jobs.create_task(play(pool, trace, engines, began))
            await pool.until(lambda: len(engines) == 2)

            def request_of(number: int, turn: int) -> dict[str, Any]:
                first_request = item(number, episodes[number][turn][0], max_tokens=4096)
                return first_request | {"id": f"r{number}-{turn}"}

            async def ask(*requests: dict[str, Any], after_s: float = 0.0) -> None:
                await asyncio.sleep(after_s)
                status, _ = await pool.call("POST", "/runs/run/requests", {"requests": requests})
                assert status == 202

            await ask(*(request_of(number, 0) for number in range(len(episodes))))
            ends: list[float] = []
            seen = 0
            while len(ends) < len(episodes):
                for sample in await pool.samples("run", seen):
                    seen = sample["cursor"]
                    number, turn = map(int, sample["id"][1:].split("-"))
                    if turn + 1 == len(episodes[number]):
                        ends.append(time.monotonic() - began)
                    else:
                        next_one, after_s = request_of(number, turn + 1), episodes[number][turn][1]
                        jobs.create_task(ask(next_one, after_s=after_s))
            player.cancel()
            return ends, pool.state.account.moves
    finally:
        for engine in engines:
            engine.engine.resume()
            await engine.kill()


async def play(pool: Client, trace: list[Change], engines: list[Served], began: float) -> None:
    oldest = 0
    for change in trace:
        await asyncio.sleep(max(0.0, began + change.at_s - time.monotonic()))
        if change.is_join:
            streaming = StreamingEngine(Behaviour(), interval_s=CHUNK / TOKENS_PER_S, chunk=CHUNK)
            engines.append(await start_engine(streaming))
            await pool.join(engines[-1].url, capacity=CAPACITY)
            continue
        victim = engines[oldest]
        oldest += 1
        if change.with_notice:
            name = victim.url.replace("/", "%2F")
            await pool.call("POST", f"/engines/{name}/drain", {"deadline_s": 1.0})
        else:
            victim.engine.stop()


def check(seeds: int, turns: int) -> None:
    words = later_wins([*REAL_WORDS, f"stream_interval={CHUNK}"])
    rules = rules_of(load_settings(words, {}))
    print("seed   half s: real  simulated  ratio     all s: real  simulated  ratio   moves: real  simulated")
    for seed in range(seeds):
        trace, episodes = small_trace(seed), episodes_of(seed, turns)
        expected, expected_moves = simulated(rules, trace, episodes)
        ends, moves = asyncio.run(measured(trace, episodes))
        half = len(episodes) // 2
        print(
            f"{seed:>4} {ends[half]:>13.1f} {expected[half]:>10.1f} {ends[half] / expected[half]:>6.2f}"
            f" {ends[-1]:>15.1f} {expected[-1]:>10.1f} {ends[-1] / expected[-1]:>6.2f}"
            f" {moves:>13} {expected_moves:>10}",
            flush=True,
        )


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=PAPER, default=list(PAPER))
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument(
        "--trace",
        default=str(RECORDED),
        metavar="CSV",
        help=f"when machines come and go, as for what-if; {DRAWN}: at random (default: the recorded one)",
    )
    parser.add_argument("--check", action="store_true", help="against a real manager, in real time")
    parser.add_argument("--seeds", type=int, default=3, help="of --check")
    parser.add_argument("--turns", type=int, default=1, help="of an episode of --check")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="as what-if takes them")
    options = parser.parse_intermixed_args()
    if options.check:
        check(options.seeds, options.turns)
    else:
        paper_table(options.models, options.trace, [f"hours={options.hours}", *options.words])
    return 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
