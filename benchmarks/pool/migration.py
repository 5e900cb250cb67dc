"""What losing 3 of 6 engines costs a batch: tokens kept and moved against beginning afresh; with a notice.

    python benchmarks/pool/migration.py [--requests 384]

Simulated in virtual time (`testing.pool_world`); the kill comes at two points of the batch. Overhead is the
time beyond that of the undisturbed batch. Half the engines are left to do the rest of the work in both ways.

With a notice, requests leave at the end of their chunk as far as the time allows. There tokens travel 128
at a time, as a manager asks for by default; those are made twice that an engine had not sent yet when it was
left. Moves are all that there were, those that even the load out included.
"""

import random
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rl_agent.flag_parser import FlagParser
from rl_agent.pool.scheduler.events import DrainAsked
from rl_agent.testing.pool_world import RULES, World, WorldEngine

ENGINES = 6
KILLED = 3
AFRESH = {"presence_penalty": 0.5}
"""A parameter that cannot be continued: the pool begins such a request again."""


def play(lengths: list[int], kill_at: float | None, *, afresh: bool) -> tuple[float, int]:
    """Seconds until the last response, and tokens sampled in all."""
    world = World(is_checking=False, chunk=4)
    engines = [world.join(f"e{number}", speed=50.0, batch=64, capacity=64) for number in range(ENGINES)]
    world.run(1.0)
    for number, length in enumerate(lengths):
        world.submit(f"r{number}", length, seed=number, params=AFRESH if afresh else {})
    if kill_at is not None:
        for engine in engines[:KILLED]:
            world.at(1.0 + kill_at, engine.crash)
    world.run_until_all_ended(1e6)
    world.assert_all_right()
    return world.now - 1.0, sum(engine.sampled for engine in world.engines.values())


CHUNK = 128
NOTICES_S = (0.0, 2.0, 5.0, 30.0)


def lose(lengths: list[int], at: float, notice_s: float) -> tuple[float, float, int]:
    """Seconds until the last response, tokens that were sampled twice, and requests moved."""
    world = World(rules=replace(RULES, stream_interval=CHUNK), is_checking=False, chunk=CHUNK)
    engines = [world.join(f"e{number}", speed=50.0, batch=64, capacity=64) for number in range(ENGINES)]
    world.run(1.0)
    for number in range(len(lengths)):  # so that speeds are known, and with them how much to send at once
        world.submit(f"earlier-{number}", 2 * CHUNK)
    world.run_until_all_ended(1e6)
    began = world.now
    for number, length in enumerate(lengths):
        world.submit(f"r{number}", length, seed=number)

    lost_before: list[float] = []

    def handle(engine: WorldEngine) -> None:
        lost_before.append(engine.lost)
        world.handle(DrainAsked(engine.engine_id, world.now + notice_s, "notice"))

    for engine in engines[:KILLED]:
        world.at(began + at, partial(handle, engine))
        world.at(began + at + notice_s + 0.1, engine.die)
    world.run_until_all_ended(1e6)
    world.assert_all_right()
    lost = sum(engine.lost for engine in engines[:KILLED]) - sum(lost_before)
    return world.now - began, lost, world.state.account.moves


def main() -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=384)
    options = parser.parse_args()
    random_ = random.Random(0)
    lengths = [
        max(2, min(8000, round(2000 * random_.lognormvariate(0, 0.6)))) for _ in range(options.requests)
    ]
    whole, needed = play(lengths, None, afresh=False)
    print(f"{options.requests} requests, {needed:,} tokens, undisturbed {whole:.0f} s")
    print("kill at   way         seconds   overhead   tokens made twice")
    for share in (0.25, 0.5):
        kill_at = share * whole
        found = {afresh: play(lengths, kill_at, afresh=afresh) for afresh in (True, False)}
        for afresh, (seconds, sampled) in found.items():
            word = "afresh" if afresh else "moved"
            print(
                f"{kill_at:>6.0f} s  {word:<10}  {seconds:>7.0f}  {seconds - whole:>8.0f} s"
                f"  {sampled - needed:>12,} ({(sampled - needed) / needed:.1%})"
            )
        (slow, _), (quick, _) = found[True], found[False]
        print(f"          overhead of moving against afresh: {(quick - slow) / (slow - whole):+.0%}")
    print(f"told at {0.25 * whole:.0f} s, {CHUNK} tokens a chunk\nnotice  seconds  tokens made twice   moves")
    for notice_s in NOTICES_S:
        seconds, lost, moves = lose(lengths, 0.25 * whole, notice_s)
        print(f"{notice_s:>4.0f} s  {seconds:>7.0f}  {lost:>17,.0f}  {moves:>6}")
    return 0


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
