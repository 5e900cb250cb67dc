"""Everything goes wrong at once over real HTTP, drawn from a seed; for the tests and for a thousand runs."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from tests.support.pool_setup import Client, expected, item, manager
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import Served, StreamingEngine, start_engine

REQUESTS = 40
TICK_S = 0.1
PATIENCE = 600
"""Turns of its own loop with nothing nearer to its end, after which a run hangs: a busy machine makes few."""
LONGEST = 90
WORDS = (
    "lease_s=0.6",
    "heartbeat_s=0.1",
    "probe_interval_s=0.1",
    "stall_timeout_s=0.5",
    "max_broken_attempts=50",
    "engine_deaths_limit=20",
    "rebalance_interval_s=0.2",
    "rebalance_gain_s=0.05",
    "journal_interval_s=0.05",
)
ACTIONS = ("join", "join", "kill", "stop", "resume", "drain", "crowd", "vanish")


class Chaos:
    """One run: its engines, its manager, its consumer, and what happens to them."""

    def __init__(self, seed: int, journal: str) -> None:
        self.random = random.Random(seed)
        # Short chunks meet more faults of a stream, long ones hold whole responses.
        self.words = (f"journal={journal}", f"stream_interval={(8, 128)[seed % 2]}")
        self.lengths = [self.random.randint(2, LONGEST) for _ in range(REQUESTS)]
        self.engines: list[Served] = []
        self.vanished: list[Served] = []
        self.fault_share = self.random.choice([0.0, 0.01, 0.04])
        self.seen: list[dict[str, Any]] = []
        self.cursor = 0
        self.still = 0
        """Turns since something came nearer to its end."""
        self.happened: Counter[str] = Counter()
        """Disturbances by name."""

    async def run(self) -> None:
        try:
            lives = self.random.randint(1, 3)
            for life in range(lives):
                async with manager(*WORDS, *self.words) as pool:
                    await self.live(pool, is_last=life == lives - 1)
        finally:
            for engine in self.engines:
                engine.engine.resume()
                await engine.kill()

    async def live(self, pool: Client, *, is_last: bool) -> None:
        """One life of the manager: the batch is submitted (again), faults happen, samples are taken."""
        groups = [item(n, length, group=f"g{n // 4}") for n, length in enumerate(self.lengths)]
        self.random.shuffle(groups)
        await pool.call("POST", "/runs/run/requests", {"requests": groups[: REQUESTS // 2]})
        for engine in self.engines:
            if engine.is_alive:
                await pool.join(engine.url)
        async with AsyncExitStack() as stack:
            jobs = await stack.enter_async_context(asyncio.TaskGroup())
            meanwhile = [jobs.create_task(self.trouble(pool)), jobs.create_task(self.watch(pool))]
            await pool.call("POST", "/runs/run/requests", {"requests": groups})
            if is_last:
                await self.consume(pool, REQUESTS)
                account = pool.state.account
                assert account.submitted == account.completed + account.failed
            else:
                await self.consume(pool, self.random.randint(0, REQUESTS // 2))
            for job in meanwhile:
                job.cancel()

    async def watch(self, pool: Client) -> None:
        """Fails once nothing comes any nearer to its end, however many tokens are sampled and thrown away."""
        best, self.still = -1, 0
        while self.still < PATIENCE:
            await asyncio.sleep(TICK_S)
            run = pool.runtime.runs.by_name.get("run")
            kept = sum(len(request.token_ids) for request in pool.state.requests.values())
            ended = len(run.ids) - len(run.open) if run else 0
            come = kept + (LONGEST + 1) * (ended + len(self.seen))
            self.still = 0 if come > best else self.still + 1
            best = max(best, come)
        engines = [f"{e.state.value} {len(e.running)} {e.reason}" for e in pool.state.engines.values()]
        waiting = [(r.request_id, r.state.value, len(r.token_ids)) for r in pool.state.requests.values()]
        raise AssertionError(f"nothing moves: {len(self.seen)} seen, {ended} ended, {waiting}, {engines}")

    async def consume(self, pool: Client, count: int) -> None:
        while len(self.seen) < count:
            at_least = self.random.randint(1, 8)
            samples = await pool.samples("run", self.cursor, at_least=at_least, wait_s=1)
            if self.random.random() < 0.2:
                self.happened["answer lost"] += 1
                continue  # on the way to the consumer: it is asked for again
            self.seen += samples
            self.cursor = samples[-1]["cursor"] if samples else self.cursor

    async def trouble(self, pool: Client) -> None:
        while True:
            alive = [engine for engine in self.engines if engine.is_alive and engine not in self.vanished]
            action = self.random.choice(ACTIONS)
            if len(alive) < 2 or (action in ("join", "crowd") and len(alive) < 5):
                await self.join(pool)
                continue
            await self.cause(pool, action, self.random.choice(alive))
            # Where the machine is too slow for all this, it gets less, or it would never end: on a busy
            # one no engine lives to give a token.
            slower = (1 + sum(self.happened.values()) / 200) * (1 + self.still / 20)
            await asyncio.sleep(slower * self.random.uniform(0.0, 0.15))

    async def cause(self, pool: Client, action: str, victim: Served) -> None:
        self.happened[action] += 1
        if action == "kill":
            await victim.kill()
        elif action == "stop":
            victim.engine.stop()
        elif action == "resume":
            for engine in self.engines:
                if engine not in self.vanished:
                    engine.engine.resume()
        elif action == "vanish":
            # As if its machine had lost power: connections stay half open, and nothing ever answers again.
            victim.engine.stop()
            self.vanished.append(victim)
        elif action == "drain":
            name = victim.url.replace("/", "%2F")
            await pool.call("POST", f"/engines/{name}/drain", {"deadline_s": 0.1})

    async def join(self, pool: Client) -> None:
        self.happened["join"] += 1
        engine = StreamingEngine(
            Behaviour(),
            interval_s=self.random.choice([0.0, 0.001, 0.004]),
            chunk=self.random.choice([1, 1, 3]),
            fault_share=self.fault_share,
            piece_bytes=self.random.choice([None, None, None, 7, 60]),
            seed=self.random.randrange(2**32),
        )
        served = await start_engine(engine)
        self.engines.append(served)
        await pool.join(served.url)

    def check(self) -> None:
        counts = Counter(sample["id"] for sample in self.seen)
        assert counts == Counter(f"r{number}" for number in range(REQUESTS))
        assert [sample["cursor"] for sample in self.seen] == list(range(1, REQUESTS + 1))
        for sample in self.seen:
            number = int(sample["id"][1:])
            assert sample["failure"] == ""
            assert sample["token_ids"] == expected(self.lengths[number], number)
            assert sample["logprobs"] == [-token / 1000 for token in sample["token_ids"]]
        assert not any(engine.engine.is_continuing_wrongly for engine in self.engines)
