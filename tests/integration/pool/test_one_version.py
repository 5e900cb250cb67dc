"""Workers whose engines finish what they began before they take the next weights, against a real manager."""

import asyncio
import re

import pytest

from rl_agent.weights.publish.publish import Publisher
from tests.integration.pool.publishing import announce, are_at
from tests.integration.pool.workers import worker
from tests.support.pool_setup import are_exact, item, manager
from tests.support.weight_transfers import StateDict, host
from tests.unit.weights.weight_versions import open_store, random_state, settings, small_step

EXTRA = ("--interval", "0.01", "--as-asked", "--takes-weights")


class Trainer:
    def __init__(self, pool, sender, finish_within_s):
        self.pool, self.sender = pool, sender
        self.publisher, self.state = Publisher(sender.store, settings()), random_state()
        self.more = {} if finish_within_s is None else {"finish_within_s": finish_within_s}

    async def publish(self, version):
        self.state = small_step(self.state, version)
        snapshot = self.publisher.publish(version, StateDict.of(self.state))
        await announce(self.pool, self.sender, snapshot, useful_from=0, **self.more)
        await self.pool.until(are_at(self.pool, version), 60)


async def keep_busy(pool, lengths):
    """Always a dozen requests, until cancelled."""
    number = 0
    while True:
        await pool.until(lambda: pool.runtime.pool.open_requests() < 12)
        items = [item(number + more, lengths[(number + more) % len(lengths)]) for more in range(4)]
        number += 4
        await pool.call("POST", "/runs/run/requests", {"requests": items})


@pytest.mark.parametrize("finish_within_s", [60.0, None], ids=["finished first", "at once"])
async def test_finish_within_s_decides_whether_responses_mix_versions(tmp_path, finish_within_s):
    for name in "ab":
        (tmp_path / name).mkdir()
    with host(open_store(tmp_path / "trainer", keep_versions=9)) as sender:
        async with (
            manager("lease_s=5", "stall_timeout_s=20") as pool,
            worker(pool.url, tmp_path / "a", name="a", loads_weights=True, extra=EXTRA, capacity=4),
            worker(pool.url, tmp_path / "b", name="b", loads_weights=True, extra=EXTRA, capacity=4),
        ):
            trainer = Trainer(pool, sender, finish_within_s)
            await pool.ready(2)
            async with asyncio.TaskGroup() as jobs:
                busy = jobs.create_task(keep_busy(pool, (30, 250, 100)))
                for version in (1, 2):
                    before = pool.state.account.tokens
                    await pool.until(lambda before=before: pool.state.account.tokens > before + 300)
                    await trainer.publish(version)
                busy.cancel()
            samples = await pool.samples("run", at_least=10_000)
            account = pool.state.account
            _, status = await pool.call("GET", "/status")
            _, metrics = await pool.call("GET", "/metrics")
    spans = [{span["weight_version"] for span in sample["spans"]} for sample in samples]
    assert len(samples) == account.submitted == account.completed
    assert are_exact(samples)
    assert set().union(*spans) == {0, 1, 2}
    at_loads = [
        int(count)
        for name in "ab"
        for count in re.findall(r"loaded version \d with (\d+)", (tmp_path / name / "engine.log").read_text())
    ]
    assert len(at_loads) == 4
    if finish_within_s is not None:
        assert all(len(versions) == 1 for versions in spans) and at_loads == [0] * 4
        assert status["totals"]["recomputed_tokens"] == 0
        assert status["totals"]["finishing_s"] > 0.0
        assert "rl_pool_finishing_seconds_total" in metrics
    else:
        assert any(len(versions) > 1 for versions in spans)
        assert status["totals"]["finishing_s"] == 0.0
