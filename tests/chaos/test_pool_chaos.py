"""Everything goes wrong at once over real HTTP: each request still ends once, and completed ones are whole.

RL_AGENT_POOL_CHAOS=1000 runs so many seeds instead of a few, from RL_AGENT_POOL_CHAOS_FROM on. A seed that
fails draws the same faults again.
"""

import asyncio
import os
import random
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from tests.pool_setup import Client, expected, item, manager
from tests.simulated_engine import Behaviour
from tests.streaming_engine import Served, StreamingEngine, start_engine

pytestmark = [
    pytest.mark.extended,
    pytest.mark.chaos,
    # Servers are torn down in the middle of accepting; the sockets that this leaves to the collector are the
    # test's own.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FIRST = int(os.environ.get("RL_AGENT_POOL_CHAOS_FROM", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("RL_AGENT_POOL_CHAOS", "12")))
REQUESTS = 40
LIMIT_S = 60.0
WORDS = (
    "lease_s=0.6",
    "heartbeat_s=0.1",
    "probe_interval_s=0.1",
    "stall_timeout_s=0.5",
    "max_fruitless=50",
    "poison_engines=20",
    "rebalance_interval_s=0.2",
    "rebalance_gain_s=0.05",
)


class Chaos:
    """One run: its engines, its manager, its consumer, and what happens to them."""

    def __init__(self, seed: int, journal: str) -> None:
        self.random = random.Random(seed)
        self.journal = f"journal={journal}"
        self.lengths = [self.random.randint(2, 90) for _ in range(REQUESTS)]
        self.engines: list[Served] = []
        self.fault_share = self.random.choice([0.0, 0.01, 0.04])
        self.seen: list[dict] = []
        self.cursor = 0
        self.deaths = 0

    async def run(self) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                lives = self.random.randint(1, 3)
                for life in range(lives):
                    async with manager(*WORDS, self.journal) as pool:
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
            trouble = jobs.create_task(self.trouble(pool))
            await pool.call("POST", "/runs/run/requests", {"requests": groups})
            if is_last:
                await self.consume(pool, REQUESTS)
                account = pool.state.account
                assert account.submitted == account.completed + account.failed
            else:
                await self.consume(pool, self.random.randint(0, REQUESTS // 2))
            trouble.cancel()

    async def consume(self, pool: Client, count: int) -> None:
        while len(self.seen) < count:
            at_least = self.random.randint(1, 8)
            found = await pool.samples("run", self.cursor, at_least=at_least, wait_s=1)
            if self.random.random() < 0.2:
                continue  # the answer got lost on the way: it is asked for again
            self.seen += found
            self.cursor = found[-1]["cursor"] if found else self.cursor

    async def trouble(self, pool: Client) -> None:
        while True:
            alive = [engine for engine in self.engines if engine.is_alive]
            action = self.random.choice(["join", "join", "kill", "stop", "resume", "drain", "crowd"])
            if len(alive) < 2 or (action in ("join", "crowd") and len(alive) < 5):
                await self.join(pool)
            elif action == "kill":
                self.deaths += 1
                await self.random.choice(alive).kill()
            elif action == "stop":
                self.random.choice(alive).engine.stop()
            elif action == "resume":
                for engine in alive:
                    engine.engine.resume()
            elif action == "drain":
                name = self.random.choice(alive).url
                await pool.call(
                    "POST", "/engines/" + name.replace("/", "%2F") + "/drain", {"deadline_s": 0.1}
                )
            await asyncio.sleep(self.random.uniform(0.0, 0.15))

    async def join(self, pool: Client) -> None:
        engine = StreamingEngine(
            Behaviour(),
            interval_s=self.random.choice([0.0, 0.001, 0.004]),
            chunk=self.random.choice([1, 1, 3]),
            fault_share=self.fault_share,
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


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_request_ends_once_and_whole_whatever_happens(seed, tmp_path):
    chaos = Chaos(seed, str(tmp_path / "journal.jsonl"))
    await chaos.run()
    chaos.check()
