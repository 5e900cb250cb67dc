"""Weights from the pool's manager, for hosts that reach nobody else."""

import os
import socket

import pytest

from rl_agent.pool.schemas import TRANSFER_TOKEN
from rl_agent.pool.settings import load_weights
from rl_agent.weights.server.server import WeightServer
from rl_agent.weights.store.store import FULL
from rl_agent.worker.weight_cache import PREFIX, HostWeights
from tests.integration.pool.publishing import QUICK, Engine, following, serves
from tests.support.pool_setup import manager, until
from tests.support.weight_transfers import NO_MANAGER, TOKEN


async def test_manager_serves_no_weights_while_a_publisher_address_answers(tmp_path, trainer):
    trainer.publish(1)
    own = trainer.offer(1).sources
    offer = trainer.offer(1, "tcp://127.0.0.1:9", *own).model_copy(update={"publisher_addresses": 2})
    transfer = load_weights([*QUICK, f"store={tmp_path / 'worker'}"])
    with socket.create_server(("127.0.0.1", 0)) as manager:
        url = f"http://127.0.0.1:{manager.getsockname()[1]}"
        with HostWeights(transfer, "127.0.0.1", url) as here:
            assert await here.fetch(offer) == 1
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.accept()


@pytest.mark.parametrize("transport", ["tcp", "http"])
async def test_host_that_reaches_only_the_manager_gets_versions_and_deltas(tmp_path, trainer, transport):
    (tmp_path / "worker").mkdir()
    transfer = load_weights([*QUICK, f"store={tmp_path / 'worker'}", f"transport={transport}"])
    async with manager(versions=tmp_path) as pool:
        with HostWeights(transfer, "127.0.0.1", pool.url) as here:
            for version in (1, 2):
                trainer.publish(version)
                offer = trainer.offer(version, "tcp://127.0.0.1:9")
                assert (await pool.call("POST", "/weights", offer.model_dump(exclude_unset=True)))[0] == 200
                assert await here.fetch(offer) == version
                with here.hold(version) as fetched, trainer.sender.store.hold(version) as published:
                    assert fetched.map(FULL) == published.map(FULL)
            assert fetched.manifest.delta is not None
            size_bytes = fetched.manifest.full.size_bytes
            assert here.received.manager > size_bytes and here.received.trainer == 0


async def test_manager_serves_only_the_wanted_version_and_only_with_a_token(tmp_path, trainer):
    for version in (1, 2):
        trainer.publish(version)
    async with manager(versions=tmp_path) as pool:
        path, token = "/weights/version-{}/manifest.json", {TRANSFER_TOKEN: TOKEN.decode()}
        assert (await pool.call("GET", path.format("000002"), headers=token))[0] == 404
        await pool.call("POST", "/weights", trainer.offer(2).model_dump(exclude_unset=True))
        for number, headers, status in (("000002", token, 200), ("000001", token, 404), ("000002", {}, 403)):
            assert (await pool.call("GET", path.format(number), headers=headers))[0] == status
        for name in ("owner.lock", "full", "full.bin.bin", "..%2Ffull.bin"):
            assert (await pool.call("GET", f"/weights/version-000002/{name}", headers=token))[0] == 404
    async with manager() as elsewhere:
        await elsewhere.call("POST", "/weights", trainer.offer(2).model_dump(exclude_unset=True))
        assert (await elsewhere.call("GET", path.format("000002"), headers=token))[0] == 404


async def test_a_host_gives_on_what_it_has_when_the_publisher_is_gone(tmp_path, trainer):
    trainer.publish(1)
    async with (
        following(tmp_path / "first", Engine()) as (first, _, _),
        following(tmp_path / "second", Engine()) as (second, _, _),
    ):
        first.offer(trainer.offer(1))
        await until(serves(first, 1))
        second.offer(trainer.offer(1, "tcp://127.0.0.1:9", first.report()["source"]))
        await until(serves(second, 1))
        size_bytes = trainer.sender.store.newest.manifest.full.size_bytes
        nothing = {"trainer": 0, "engines": 0, "manager": 0, "same_host": 0}
        assert first.report()["received"] == {**nothing, "trainer": size_bytes}
        assert second.report()["received"] == {**nothing, "engines": size_bytes}


def test_a_host_names_no_source_while_its_server_ends(tmp_path, monkeypatch):
    sources = []
    end = WeightServer.__exit__

    def ends(server, *error):
        end(server, *error)
        sources.append(here.source)  # as the heartbeat of another thread asks for it

    with HostWeights(load_weights([f"store={tmp_path}"]), "127.0.0.1", NO_MANAGER) as here:
        monkeypatch.setattr(WeightServer, "__exit__", ends)
    assert sources == [None]


def test_what_a_killed_worker_left_is_removed_and_what_is_used_is_not(tmp_path):
    transfer = load_weights([f"store={tmp_path}"])
    with HostWeights(transfer, "127.0.0.1", NO_MANAGER):
        left = tmp_path / f"{PREFIX}left"
        left.mkdir()
        (left / "owner.lock").touch()
        fresh = tmp_path / f"{PREFIX}fresh"
        fresh.mkdir()
        old = tmp_path / f"{PREFIX}old"
        old.mkdir()
        os.utime(old, (0, 0))
        with HostWeights(transfer, "127.0.0.1", NO_MANAGER):
            assert not left.exists() and not old.exists() and fresh.exists()
            assert len(list(tmp_path.glob(PREFIX + "*"))) == 3
