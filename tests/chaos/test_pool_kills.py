"""kill -9 of the manager at random instants: nothing is lost or twice.

RL_AGENT_POOL_KILLS=100 kills so often instead of three times.
"""

import asyncio
import json
import os
import random
import signal

import aiohttp
import pytest

from tests.integration.pool.test_restart import manager_process
from tests.support.pool_setup import expected, item, read_journal
from tests.support.ports import quiet_port
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import Served, StreamingEngine, serving

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("RL_AGENT_POOL_KILLS", "3"))
REQUESTS = 40
LENGTH = 150 + 100 * KILLS


class Consumer:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.seen: list[dict] = []

    async def submit(self, url: str, engine: Served) -> None:
        """Idempotent; the engine has no worker that would register it again."""
        items = [item(number, LENGTH + number) for number in range(REQUESTS)]
        async with self.session.post(url + "/runs/run/requests", json={"requests": items}) as answer:
            assert answer.status == 202
        body = {"name": engine.url, "url": engine.url}
        async with self.session.post(url + "/engines", json=body) as answer:
            assert answer.status in (201, 409)  # it has it already

    async def take(self, url: str, wait_s: int) -> None:
        after = self.seen[-1]["cursor"] if self.seen else 0
        path = f"/runs/run/samples?after={after}&min=1&wait_s={wait_s}"
        async with self.session.get(url + path) as answer:
            assert answer.status == 200, await answer.text()
            self.seen += [json.loads(line) for line in (await answer.read()).splitlines()]


def journalled(path) -> dict[str, int]:
    """Tokens of each response in the journal as the kill left it."""
    numbers: dict[str, int] = {}
    for row in read_journal(path, "progress"):
        numbers[row["id"]] = row["start"] + len(row["record"]["token_ids"])
    return numbers


def check(consumer: Consumer, engine: StreamingEngine) -> None:
    """Every request ended once, with the tokens it was to have."""
    assert [sample["cursor"] for sample in consumer.seen] == list(range(1, REQUESTS + 1))
    assert sorted(s["id"] for s in consumer.seen) == sorted(f"r{n}" for n in range(REQUESTS))
    for sample in consumer.seen:
        number = int(sample["id"][1:])
        assert sample["failure"] == ""
        assert sample["token_ids"] == expected(LENGTH + number, number)
        assert sample["logprobs"] == [-token / 1000 for token in sample["token_ids"]]
    assert not engine.is_continuing_wrongly


async def test_a_manager_killed_at_random_loses_no_request_and_few_tokens(tmp_path):
    random_, journal = random.Random(0), tmp_path / "journal"
    words = ("journal_interval_s=0.05", "stream_interval=4")
    continued = 0
    port = quiet_port()
    engine = StreamingEngine(Behaviour(), interval_s=0.03, does_as_asked=True, chunk=4)
    async with aiohttp.ClientSession() as session, serving(engine) as served:
        consumer = Consumer(session)
        for _ in range(KILLS):
            async with manager_process(port, journal, *words) as (process, url):
                await consumer.submit(url, served)
                until = asyncio.get_running_loop().time() + random_.uniform(0.1, 1.0)
                while asyncio.get_running_loop().time() < until:
                    await consumer.take(url, 0)
                    await asyncio.sleep(0.01)  # the manager refuses more than 2,000 calls per second
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
            continued += sum(journalled(journal).values())
        async with manager_process(port, journal, *words) as (_, url):
            engine.interval_s = 0.0
            await consumer.submit(url, served)
            while len(consumer.seen) < REQUESTS:
                await consumer.take(url, 30)
    check(consumer, engine)
    needed = sum(LENGTH + number for number in range(REQUESTS))
    print(f"{KILLS} kills: {needed} tokens needed, {engine.sampled - needed} sampled again")
    assert continued > 0


@pytest.mark.extended
async def test_a_manager_and_an_engine_asleep_past_all_leases_lose_nothing(tmp_path):
    """SIGSTOP, and SIGCONT after four leases; the engine sleeps in mid-stream."""
    words = (
        "lease_s=0.5",
        "heartbeat_s=0.1",
        "stall_timeout_s=0.5",
        "probe_interval_s=0.1",
        "max_broken_attempts=50",
    )
    engines = [StreamingEngine(Behaviour(), interval_s=0.02, does_as_asked=True, chunk=4) for _ in range(2)]
    async with aiohttp.ClientSession() as session, serving(engines[0]) as first, serving(engines[1]) as other:
        consumer = Consumer(session)
        async with manager_process(quiet_port(), tmp_path / "journal", *words) as (process, url):
            await consumer.submit(url, first)
            await consumer.submit(url, other)
            for _ in range(3):
                await consumer.take(url, 1)
                engines[0].stop()
                os.kill(process.pid, signal.SIGSTOP)
                await asyncio.sleep(2.0)
                os.kill(process.pid, signal.SIGCONT)
                engines[0].resume()
            for engine in engines:
                engine.interval_s = 0.0
            async with asyncio.timeout(120):
                while len(consumer.seen) < REQUESTS:
                    await consumer.submit(url, first)
                    await consumer.submit(url, other)
                    await consumer.take(url, 5)
    for engine in engines:
        check(consumer, engine)
