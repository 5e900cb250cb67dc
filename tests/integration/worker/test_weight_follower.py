"""A worker's side of weights over real transfers, with the routes of an engine simulated."""

import asyncio
from contextlib import contextmanager
from dataclasses import replace

import pytest

from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import FULL
from rl_agent.worker.weight_cache import PREFIX, HostWeights
from tests.integration.pool.publishing import Engine, Trainer, following, serves
from tests.integration.pool.workers import engine_pids, worker
from tests.support.pool_setup import manager, until
from tests.support.weight_transfers import SERVER, StateDict, host
from tests.unit.weights.weight_versions import open_store, random_state, settings


async def test_versions_are_fetched_loaded_and_said_before_the_engine_goes_on(tmp_path, trainer):
    engine = Engine()
    async with following(tmp_path / "worker", engine) as (weights, reports, _):
        for version in (1, 2, 3):
            trainer.publish(version)
            offer = trainer.offer(version)
            weights.offer(offer)
            await until(lambda version=version: engine.served[-1:] == [version])
            report, was_paused = reports[-1]
            assert (report["weight_version"], report["digest"]) == (version, offer.digest)
            assert was_paused, "the manager was told after tokens of the new version could come"
    assert engine.served == [1, 2, 3]
    assert not list((tmp_path / "worker").glob(PREFIX + "*"))


async def test_a_version_is_fetched_at_the_first_heartbeat_that_names_it(tmp_path, trainer):
    """Two hosts that hear of it at once fetch it, too: each has the other's address before there is a
    version.
    """
    trainer.publish(1)
    engines = [Engine(), Engine()]
    async with (
        following(tmp_path / "first", engines[0]) as (first, first_reports, _),
        following(tmp_path / "second", engines[1]) as (second, second_reports, _),
    ):
        addresses = [weights.report()["source"] for weights in (first, second)]
        assert None not in addresses
        answered = trainer.offer(1)
        first.offer(answered.model_copy(update={"sources": (*answered.sources, addresses[1])}))
        await until(lambda: engines[0].served == [1])
        second.offer(trainer.offer(1, addresses[0]).model_copy(update={"publisher_addresses": 0}))
        await until(lambda: engines[1].served == [1])
    heartbeats = [
        [report["weight_version"] for report, _ in reports] for reports in (first_reports, second_reports)
    ]
    assert heartbeats == [[1], [1]], "the manager heard of nothing else in between, and was not asked again"


async def test_a_version_that_is_damaged_on_its_host_is_fetched_again_and_served(tmp_path, trainer):
    engine = Engine()
    trainer.publish(1)
    async with following(tmp_path / "worker", engine) as (weights, reports, _):
        fetch, fetches = HostWeights.fetch, []

        async def damaging(here, offer):
            version = await fetch(here, offer)
            fetches.append(version)
            if len(fetches) == 1:
                with here.hold(version) as snapshot, snapshot.path(FULL).open("r+b") as file:
                    file.write(b"\xff\xff")
            return version

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HostWeights, "fetch", damaging)
            weights.offer(trainer.offer(1))
            await until(lambda: engine.served == [1])
    assert fetches == [1, 1]
    assert any("differ from their digests" in report["problem"] for report, _ in reports)


@contextmanager
def slow_copy(folder, state, bytes_per_s):
    """The sources of a host that has a state as version 1, and gives so much of it."""
    with host(open_store(folder / "slow"), server=replace(SERVER, bytes_per_s=bytes_per_s)) as sender:
        Publisher(sender.store, settings()).publish(1, StateDict.of(state))
        yield sender.server.sources


async def test_fetch_of_a_stale_version_is_abandoned_for_a_newer_one(tmp_path, trainer):
    trainer.state = state = random_state(rows=200_000)
    for version in (1, 2):
        trainer.publish(version)
    engine = Engine()
    with slow_copy(tmp_path, state, 1e5) as sources:  # two minutes: longer than anything here is waited for
        async with following(tmp_path / "worker", engine) as (weights, reports, _):
            weights.offer(trainer.offer(1, *sources))
            await until(lambda: weights.report()["is_fetching"])
            weights.offer(trainer.offer(2))
            await until(lambda: engine.served)
    assert engine.served == [2]
    assert not any(report["problem"] for report, _ in reports)


@pytest.mark.parametrize(("useful_from", "served"), [(1, [1, 3]), (2, [3]), (None, [3])])
async def test_a_slow_fetch_goes_on_while_the_trainer_still_takes_its_version(
    tmp_path, trainer, useful_from, served
):
    """Versions published meanwhile are skipped, but for the newest."""
    trainer.state = state = random_state(rows=20_000)
    for version in (1, 2, 3):
        trainer.publish(version)
    engine = Engine()
    with slow_copy(tmp_path, state, 1e6) as sources:  # more than a second
        async with following(tmp_path / "worker", engine) as (weights, reports, _):
            weights.offer(trainer.offer(1, *sources))
            await until(lambda: weights.report()["is_fetching"])
            for version in (2, 3):
                offer = trainer.offer(version).model_copy(update={"useful_from": useful_from})
                weights.offer(offer.model_copy(update={"sources": ()}))  # as while it is fetching
            while engine.served != served:
                is_fetching = weights.report()["is_fetching"]
                weights.offer(offer.model_copy(update={"sources": () if is_fetching else offer.sources}))
                assert len(engine.served) <= len(served)
                await asyncio.sleep(0.01)
    assert not any(report["problem"] for report, _ in reports)


async def test_what_is_fetched_is_said_and_waits_until_the_engine_may_load_it(tmp_path, trainer):
    trainer.publish(1)
    waiting = trainer.offer(1).model_copy(update={"may_load": False})
    engine = Engine()
    async with following(tmp_path / "worker", engine) as (weights, reports, _):
        weights.offer(waiting)
        await until(lambda: weights.is_waiting)
        assert weights.report()["fetched_version"] == reports[-1][0]["fetched_version"] == 1
        for _ in range(3):
            weights.offer(waiting)
            await asyncio.sleep(0.05)
        assert engine.calls == []
        weights.offer(trainer.offer(1))
        async with weights.kept():  # what was said before it slept does not hold when it is awake
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        assert engine.calls == []
        weights.offer(trainer.offer(1))
        await until(lambda: engine.served == [1])
        await until(lambda: not weights.is_waiting)
    assert all("fetched_version" not in report for report, _ in reports if report["weight_version"] == 1)


@pytest.mark.parametrize(("useful_from", "served"), [(1, [1, 2]), (2, [2])])
async def test_waiting_version_is_loaded_only_while_the_trainer_accepts_it(
    tmp_path, trainer, useful_from, served
):
    for version in (1, 2):
        trainer.publish(version)
    engine = Engine()
    async with following(tmp_path / "worker", engine) as (weights, _, _):
        weights.offer(trainer.offer(1).model_copy(update={"may_load": False}))
        await until(lambda: weights.is_waiting)
        newer = trainer.offer(2).model_copy(update={"useful_from": useful_from, "may_load": False})
        weights.offer(newer)
        await until(lambda: weights.report().get("fetched_version") == served[0])
        while engine.served != served:
            weights.offer(newer.model_copy(update={"may_load": weights.is_waiting}))
            await asyncio.sleep(0.05)


async def test_what_fails_is_said_with_its_reason_and_tried_again(tmp_path, trainer):
    trainer.publish(1)
    engine = Engine()
    async with following(tmp_path / "worker", engine) as (weights, reports, _):
        weights.offer(trainer.offer(1, "tcp://127.0.0.1:9"))
        await until(lambda: weights.problem)
        assert "127.0.0.1:9" in weights.problem and weights.report()["weight_version"] is None
        assert reports[0][0]["source"], "others cannot be sent here from the start"
        weights.offer(trainer.offer(1))
        await until(lambda: engine.served == [1])
        assert serves(weights, 1)() and weights.report()["problem"] == ""


async def test_a_version_that_stays_away_is_warned_of_ever_more_rarely(
    tmp_path, trainer, monkeypatch, caplog
):
    monkeypatch.setattr("rl_agent.worker.weight_follower.LONGEST_PAUSE_S", 0.01)
    trainer.publish(1)
    async with following(tmp_path / "worker", Engine()) as (weights, _, _):
        weights.offer(trainer.offer(1, "tcp://127.0.0.1:9"))
        await until(lambda: "(try 8)" in caplog.text)
        trainer.publish(2)
        weights.offer(trainer.offer(2, "tcp://127.0.0.1:9"))
        await until(lambda: "version 2 (try" in caplog.text)
    tries = [record.args[:2] for record in caplog.records if "(try" in record.msg]
    assert tries[:4] == [(1, 1), (1, 2), (1, 4), (1, 8)] and (2, 1) in tries


async def test_a_version_that_does_not_load_leaves_the_one_before_serving(tmp_path, trainer):
    engine = Engine({("/collective_rpc", 2)})
    async with following(tmp_path / "worker", engine) as (weights, _, job):
        for version in (1, 2):
            trainer.publish(version)
            weights.offer(trainer.offer(version))
            await until(serves(weights, 1))
        await until(lambda: weights.problem)
        assert weights.report()["weight_version"] == 1 and not engine.is_paused and not job.done()
        engine.failing.clear()
        await until(serves(weights, 2))


async def test_an_engine_that_is_busy_loading_is_said_to_live(tmp_path, trainer, monkeypatch):
    monkeypatch.setattr("rl_agent.worker.weight_follower.REPORT_S", 0.05)

    class Slow(Engine):
        async def answer(self, request):
            if request.path == "/collective_rpc":
                await asyncio.sleep(0.5)
            return await super().answer(request)

    trainer.publish(1)
    async with following(tmp_path / "worker", Slow()) as (weights, reports, _):
        weights.offer(trainer.offer(1))
        await until(serves(weights, 1))
        during = [was_paused for report, was_paused in reports if report["weight_version"] is None]
        assert sum(during) >= 3
        ended = len(reports)
        await asyncio.sleep(0.3)
        assert len(reports) <= ended + 1


async def test_an_engine_without_a_whole_version_is_given_up(tmp_path, trainer):
    trainer.publish(1)
    async with following(tmp_path / "worker", Engine({("/collective_rpc", 1)})) as (weights, _, job):
        weights.offer(trainer.offer(1))
        await until(job.done)
        assert "no earlier version to go back to" in job.result()


async def test_a_pool_with_another_history_is_followed(tmp_path, trainer):
    with host(open_store(tmp_path / "other")) as sender:
        other = Trainer(sender, random_state(seed=5))
        other.publish(1)
        engine = Engine()
        async with following(tmp_path / "worker", engine) as (weights, _, _):
            for version in (1, 2):
                trainer.publish(version)
                weights.offer(trainer.offer(version))
                await until(serves(weights, version))
            weights.offer(other.offer(1))
            await until(lambda: weights.report()["digest"] == other.offer(1).digest)


@pytest.mark.parametrize("sources", [(), ("tcp://127.0.0.1:9",)], ids=["publisher", "manager"])
async def test_engine_that_never_loads_weights_is_restarted_with_the_reason(tmp_path, trainer, sources):
    trainer.publish(1)
    async with (
        manager("weights_timeout_s=6", versions=tmp_path) as pool,
        worker(pool.url, tmp_path, loads_weights=True),
    ):
        await pool.ready(1)  # a simulated engine: it has no routes for weights
        await pool.call("POST", "/weights", trainer.offer(1, *sources).model_dump(exclude_unset=True))
        await pool.until(lambda: len(engine_pids(tmp_path)) == 2)
        await pool.ready(1)
    reasons = [engine.reason for engine in pool.state.departed]
    assert reasons[0].startswith("stays at weight version 0 for 6 s: http://127.0.0.1:")
    assert pool.state.account.engine_deaths == 0


async def test_worker_learns_of_a_version_before_its_next_heartbeat(tmp_path, trainer):
    trainer.publish(1)
    async with (
        manager("lease_s=1200", "heartbeat_s=600", versions=tmp_path) as pool,
        worker(pool.url, tmp_path, loads_weights=True),
    ):
        await pool.ready(1)
        await pool.call("POST", "/weights", trainer.offer(1).model_dump(exclude_unset=True))
        [engine] = pool.state.engines.values()
        await until(lambda: engine.weights.problem)  # a simulated engine: it has no routes for weights
    assert engine.weights.problem.startswith("http://127.0.0.1:")
