"""MiniWoB episodes per minute with 1 to 64 contexts of one browser, beside lockstep batching; costs of one.

    python benchmarks/rollout/web.py --contexts 1 8

Every episode is two to eight actions. Before each the model thinks, and after each the page is awaited as
one of the web would be: both are pauses, log-normal with the given means, so that a few take several times as
long. In lockstep all episodes of a batch wait for the slowest at each of both, and for the longest at the
end. The engine is idle while no episode waits for the model. No model runs here.
"""

import argparse
import asyncio
import math
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rl_agent.env.guard import descendants
from rl_agent.env.web.environment import WebEnvironment
from rl_agent.env.web.miniwob import task_names
from rl_agent.system.flag_parser import FlagParser
from rl_agent.types import Task

TASKS = ("click-checkboxes", "enter-text", "click-tab", "login-user", "click-link", "read-table")
SIGMA = 1.0
STEPS = (2, 8)


def task(number: int) -> Task:
    """A task whose page is another for every number."""
    name = TASKS[number % len(TASKS)]
    return Task(f"{name}-{number}", "", "web", "easy", extra={"miniwob": name, "seed": number})


@dataclass(frozen=True)
class Pauses:
    """Mean seconds that the model takes for an answer, and the web for a page."""

    think_s: float
    page_s: float

    def of(self, number: int) -> list[tuple[float, float]]:
        """The pauses of an episode, a pair an action."""
        random_ = random.Random(number)

        def pause(mean_s: float) -> float:
            return random_.lognormvariate(math.log(mean_s) - SIGMA**2 / 2, SIGMA)

        return [(pause(self.think_s), pause(self.page_s)) for _ in range(random_.randint(*STEPS))]


class Engine:
    """Counts who waits for the model, and for how long nobody does."""

    def __init__(self) -> None:
        self._waiting = 0
        self._idle_since = time.monotonic()
        self.idle_s = 0.0

    @asynccontextmanager
    async def thinking(self) -> AsyncIterator[None]:
        if not self._waiting:
            self.idle_s += time.monotonic() - self._idle_since
        self._waiting += 1
        yield
        self._waiting -= 1
        if not self._waiting:
            self._idle_since = time.monotonic()


async def episode(number: int, pauses: Pauses, engine: Engine) -> None:
    """Reset, then think, act and look, and wait for the page, a few times."""
    environment = WebEnvironment()
    await environment.reset(task(number), 0)
    for think_s, page_s in pauses.of(number):
        async with engine.thinking():
            await asyncio.sleep(think_s)
        await asyncio.sleep(page_s)
        await environment.step("hover 500 500")
    await environment.close()


async def free(count: int, at_once: int, pauses: Pauses, engine: Engine) -> None:
    """Run so many episodes: as one ends the next begins."""
    places = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with places:
            await episode(number, pauses, engine)

    await asyncio.gather(*(one(number) for number in range(count)))


async def lockstep(count: int, at_once: int, pauses: Pauses, engine: Engine) -> None:
    """Run so many episodes in batches, all of a batch at the same step."""
    for first in range(0, count, at_once):
        numbers = range(first, min(first + at_once, count))
        environments = [WebEnvironment() for _ in numbers]
        await asyncio.gather(*(e.reset(task(n), 0) for e, n in zip(environments, numbers, strict=True)))
        drawn = [pauses.of(number) for number in numbers]
        for step in range(max(map(len, drawn))):
            alive = [(e, p[step]) for e, p in zip(environments, drawn, strict=True) if step < len(p)]
            async with engine.thinking():
                await asyncio.sleep(max(think_s for _, (think_s, _) in alive))
            await asyncio.sleep(max(page_s for _, (_, page_s) in alive))
            await asyncio.gather(*(e.step("hover 500 500") for e, _ in alive))
        await asyncio.gather(*(e.close() for e in environments))


Way = Callable[[int, int, Pauses, Engine], Awaitable[None]]


async def rate(way: Way, count: int, at_once: int, pauses: Pauses) -> tuple[float, float, float]:
    """Return episodes per minute, and the shares of time that the engine is idle and the cores work."""
    engine = Engine()
    began, worked_s = time.monotonic(), processor_s()
    await way(count, at_once, pauses, engine)
    seconds = time.monotonic() - began
    cores = os.cpu_count() or 1
    return 60 * count / seconds, engine.idle_s / seconds, (processor_s() - worked_s) / seconds / cores


def processor_s() -> float:
    """Return the processor time of this process and all below it, those that were reaped too."""
    total = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


async def costs() -> None:
    """Measures one reset, one step and one context on an idle browser."""
    resets, steps, pictures = [], [], []
    environment = WebEnvironment()
    for number in range(12):
        began = time.monotonic()
        await environment.reset(task(number), 0)
        resets.append(time.monotonic() - began)
        for _ in range(4):
            began = time.monotonic()
            await environment.step("hover 500 500")
            steps.append(time.monotonic() - began)
            began = time.monotonic()
            await environment._look()
            pictures.append(time.monotonic() - began)
    (picture,) = (await environment.step("wait 0")).observation.images
    size = len(await asyncio.to_thread(Path(picture).read_bytes))
    reset_ms, step_ms, picture_ms = (1e3 * statistics.median(each) for each in (resets[2:], steps, pictures))
    print(
        f"medians: reset {reset_ms:.0f} ms, step {step_ms:.0f} ms, its screenshot {picture_ms:.0f} ms of it"
    )
    (shared,) = WebEnvironment._shared.values()
    browser = await shared.lease()
    before = browser.resident_bytes()
    open_ = [WebEnvironment() for _ in range(8)]
    await asyncio.gather(*(each.reset(task(n), 0) for n, each in enumerate(open_)))
    each_mib = (browser.resident_bytes() - before) / len(open_) / 2**20
    print(f"{size} bytes a screenshot; {before >> 20} MiB with one context, {each_mib:.0f} MiB each more")
    for each in (*open_, environment):
        await each.close()
    await shared.give_back(browser)


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--waves", type=int, default=3, help="episodes for each context; one in lockstep")
    parser.add_argument("--think", type=float, default=1.0, help="mean seconds that the model takes")
    parser.add_argument("--page", type=float, default=0.5, help="mean seconds that the web takes for a page")
    asyncio.run(measure(parser.parse_args()))


async def measure(arguments: argparse.Namespace) -> None:
    assert set(TASKS) <= set(task_names())
    pauses = Pauses(arguments.think, arguments.page)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    await costs()
    print("          episodes per minute             engine idle     cores work for it")
    print("contexts     free  lockstep           free  lockstep      free  lockstep")
    for at_once in arguments.contexts:
        ran = await rate(free, arguments.waves * at_once, at_once, pauses)
        base = await rate(lockstep, max(at_once, 3), at_once, pauses)
        rates = f"{ran[0]:9.0f}{base[0]:10.0f}{ran[0] / base[0]:8.1f}x"
        print(f"{at_once:8}{rates}{ran[1]:9.0%}{base[1]:10.0%}{ran[2]:10.0%}{base[2]:10.0%}", flush=True)
    await WebEnvironment.close_shared()


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
