"""MiniWoB episodes a minute with 1, 8 and 32 contexts of one browser, beside lockstep batching; costs of one.

    python benchmarks/rollout/web.py --episodes 64 --think 0.5

Every episode is two to six actions, each after a pause that stands for the model: log-normal with the
given mean, so that a few take several times as long. In lockstep all episodes of a batch wait for the
slowest at each step, and for the longest at the end. No model runs here.
"""

import argparse
import asyncio
import math
import os
import random
import statistics
import time
from pathlib import Path

from rl_agent.env.web.environment import WebEnvironment
from rl_agent.env.web.miniwob import task_names
from rl_agent.types import Task

TASKS = ("click-checkboxes", "enter-text", "click-tab", "login-user", "click-link", "read-table")
SIGMA = 1.0


def task(number: int) -> Task:
    """A task whose page is another for every number."""
    name = TASKS[number % len(TASKS)]
    return Task(f"{name}-{number}", "", "web", "easy", extra={"miniwob": name, "seed": number})


def thinking(number: int, think_s: float) -> list[float]:
    """The pauses of an episode: two to six of them."""
    random_ = random.Random(number)
    mu = math.log(think_s) - SIGMA**2 / 2
    return [random_.lognormvariate(mu, SIGMA) for _ in range(random_.randint(2, 6))]


async def episode(number: int, think_s: float) -> None:
    """Reset, then look and move the mouse after each pause."""
    environment = WebEnvironment()
    await environment.reset(task(number), 0)
    for pause in thinking(number, think_s):
        await asyncio.sleep(pause)
        await environment.step("hover 500 500")
    await environment.close()


async def free(count: int, at_once: int, think_s: float) -> float:
    """Seconds for so many episodes: as one ends the next begins."""
    places = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with places:
            await episode(number, think_s)

    began = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(count)))
    return time.monotonic() - began


async def lockstep(count: int, at_once: int, think_s: float) -> float:
    """Seconds for so many episodes in batches, all of a batch at the same step."""
    began = time.monotonic()
    for first in range(0, count, at_once):
        numbers = range(first, min(first + at_once, count))
        environments = [WebEnvironment() for _ in numbers]
        await asyncio.gather(*(e.reset(task(n), 0) for e, n in zip(environments, numbers, strict=True)))
        pauses = [thinking(number, think_s) for number in numbers]
        for step in range(max(map(len, pauses))):
            alive = [(e, p) for e, p in zip(environments, pauses, strict=True) if step < len(p)]
            await asyncio.sleep(max(p[step] for _, p in alive))  # the batch waits for its slowest answer
            await asyncio.gather(*(e.step("hover 500 500") for e, _ in alive))
        await asyncio.gather(*(e.close() for e in environments))
    return time.monotonic() - began


async def costs() -> None:
    """What one reset, one step and one context cost on an idle browser."""
    resets, steps = [], []
    environment = WebEnvironment()
    for number in range(12):
        began = time.monotonic()
        await environment.reset(task(number), 0)
        resets.append(time.monotonic() - began)
        for _ in range(4):
            began = time.monotonic()
            await environment.step("hover 500 500")
            steps.append(time.monotonic() - began)
    (picture,) = (await environment.step("wait 0")).observation.images
    size = len(await asyncio.to_thread(Path(picture).read_bytes))
    print(f"reset {statistics.median(resets[2:]) * 1e3:.0f} ms, step with its screenshot")
    print(f"{statistics.median(steps) * 1e3:.0f} ms, {size} bytes a screenshot (medians)")
    (shared,) = WebEnvironment._shared.values()
    browser = await shared.lease()
    before = browser.resident_bytes()
    open_ = [WebEnvironment() for _ in range(8)]
    await asyncio.gather(*(each.reset(task(n), 0) for n, each in enumerate(open_)))
    each_mib = (browser.resident_bytes() - before) / len(open_) / 2**20
    print(f"{before >> 20} MiB with one context, {each_mib:.0f} MiB each more")
    for each in (*open_, environment):
        await each.close()
    await shared.give_back(browser)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--think", type=float, default=0.5, help="mean seconds that the model takes")
    asyncio.run(measure(parser.parse_args()))


async def measure(arguments: argparse.Namespace) -> None:
    assert set(TASKS) <= set(task_names())
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    await costs()
    print("contexts   episodes a minute   lockstep")
    for at_once in arguments.contexts:
        count = arguments.episodes if at_once > 1 else max(arguments.episodes // 8, 4)
        rates = [60 * count / await run(count, at_once, arguments.think) for run in (free, lockstep)]
        print(f"{at_once:8}   {rates[0]:17.1f}   {rates[1]:8.1f}", flush=True)
    await WebEnvironment.close_shared()


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
