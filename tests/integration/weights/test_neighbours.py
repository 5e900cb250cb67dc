"""Several engines of one host: a version is fetched once, and its bytes are there once."""

import asyncio
import os
from dataclasses import replace

import pytest

from rl_agent.errors import WeightsError
from rl_agent.pool.scheduler.reports import WeightBytes
from rl_agent.pool.settings import load_weights
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.owner_lock import STORE_PREFIX
from rl_agent.weights.store.store import FULL, MANIFEST
from rl_agent.worker.weight_cache import PREFIX, HostWeights
from tests.support.pool_setup import until
from tests.support.weight_transfers import NO_MANAGER, SERVER, StateDict, announced, host, offer_of
from tests.unit.weights.weight_versions import open_store, random_state, settings

pytestmark = pytest.mark.timeout(120)

ROWS = 20_000
SLOW = replace(SERVER, bytes_per_s=20e6)


@pytest.fixture
def trainer(tmp_path):
    with host(open_store(tmp_path / "trainer", keep_versions=9), server=SLOW) as sender:
        yield sender


def publish(trainer, version):
    """A version that shares nothing with the one before, and what the pool says of it."""
    publisher = Publisher(trainer.store, settings("never"))
    snapshot = publisher.publish(version, StateDict.of(random_state(version, rows=ROWS)))
    return offer_of(announced(snapshot), *trainer.server.sources)


def engine_host(tmp_path):
    return HostWeights(load_weights([f"store={tmp_path / 'shm'}"]), "127.0.0.1", NO_MANAGER)


def file_of(here, version):
    with here.hold(version) as snapshot:
        return snapshot.path(FULL)


async def fetching(here, offer, tmp_path):
    """A fetch that has begun."""
    job = asyncio.create_task(here.fetch(offer))
    await until(lambda: list((tmp_path / "shm").glob(f"{PREFIX}*/draft-*")))
    return job


async def test_engines_that_want_a_version_at_once_fetch_it_once(tmp_path, trainer):
    offer = publish(trainer, 1)
    with engine_host(tmp_path) as a, engine_host(tmp_path) as b, engine_host(tmp_path) as c:
        await asyncio.gather(*(here.fetch(offer) for here in (a, b, c)))
        paths = {file_of(here, 1) for here in (a, b, c)}
        assert len(paths) == 3
        assert len({path.stat().st_ino for path in paths}) == 1
    [size_bytes] = {trainer.store.newest.manifest.full.size_bytes}
    assert trainer.server.sent_bytes == size_bytes
    assert not list((tmp_path / "shm").iterdir())


async def test_garbage_collection_of_one_neighbour_leaves_the_others_versions(tmp_path, trainer):
    with engine_host(tmp_path) as a, engine_host(tmp_path) as b:
        offer = publish(trainer, 1)
        await a.fetch(offer)
        await b.fetch(offer)
        kept = file_of(b, 1)
        content = kept.read_bytes()
        for version in (2, 3, 4, 5):  # a has long written into the memory of others that it had
            await a.fetch(publish(trainer, version))
        assert kept.read_bytes() == content
        await b.fetch(publish(trainer, 6))


async def test_when_the_one_that_fetches_is_stopped_another_does(tmp_path, trainer):
    offer = publish(trainer, 1)
    with engine_host(tmp_path) as a, engine_host(tmp_path) as b:
        first = await fetching(a, offer, tmp_path)
        second = asyncio.create_task(b.fetch(offer))
        a.stop()
        with pytest.raises(WeightsError, match="cancelled"):
            await first
        assert await second == 1


async def test_a_damaged_version_is_not_taken_from_a_neighbour(tmp_path, trainer):
    offer = publish(trainer, 1)
    with engine_host(tmp_path) as a, engine_host(tmp_path) as b:
        await a.fetch(offer)
        path = file_of(a, 1)
        with path.open("r+b") as file:
            file.write(b"damaged")
        await b.fetch(offer)
        own = file_of(b, 1)
        assert own.stat().st_ino != path.stat().st_ino
        assert own.read_bytes() == trainer.store.newest.path(FULL).read_bytes()


@pytest.fixture(params=["trainer", f"{STORE_PREFIX}run/trainer"], ids=["the run's own", "another's"])
def trainer_beside(tmp_path, request):
    """A trainer whose versions lie on the engines' host."""
    root = tmp_path / "shm" / request.param
    with host(open_store(root, keep_versions=1), server=SLOW) as sender:
        yield sender


async def test_versions_of_a_trainer_on_this_host_are_linked_and_not_sent(tmp_path, trainer_beside):
    with engine_host(tmp_path) as here, engine_host(tmp_path) as another:
        for version in (1, 2, 3):
            offer, theirs = publish(trainer_beside, version), trainer_beside.store.newest
            content = theirs.path(FULL).read_bytes()
            for engine in (here, another):
                await engine.fetch(offer)
                assert file_of(engine, version).samefile(theirs.path(FULL))
            assert file_of(here, version).read_bytes() == content
        assert here.received == WeightBytes(same_host=3 * len(content)) and another.received == WeightBytes()
    assert trainer_beside.server.sent_bytes == 0


async def test_a_trainer_reuses_memory_once_no_engine_has_a_link(tmp_path):
    root = tmp_path / "shm" / "trainer"
    with host(open_store(root, keep_versions=2)) as trainer, engine_host(tmp_path) as here:
        files = []
        for version in range(1, 8):
            await here.fetch(publish(trainer, version))
            files.append(file_of(here, version).stat().st_ino)
        assert len(set(files)) == 3
        published = trainer.store.newest.path(FULL).read_bytes()
        for version in (8, 9, 10):  # the engine is behind: what it has is left to it
            publish(trainer, version)
        assert file_of(here, 7).read_bytes() == published


@pytest.mark.parametrize("damage", ["changed", "cut", "unreadable"])
async def test_broken_versions_of_a_trainer_on_this_host_are_sent(tmp_path, trainer, trainer_beside, damage):
    offer = publish(trainer, 1)
    publish(trainer_beside, 1)
    theirs = trainer_beside.store.newest.path(FULL)
    if damage == "changed":
        with theirs.open("r+b") as file:
            file.write(b"damaged")
    elif damage == "cut":
        os.truncate(theirs, 100)
    else:
        (theirs.parent / MANIFEST).write_text("{")
    with engine_host(tmp_path) as here:
        await here.fetch(offer)
        assert file_of(here, 1).read_bytes() == trainer.store.newest.path(FULL).read_bytes()
    assert trainer.server.sent_bytes > 0


async def test_an_address_that_cannot_be_understood_costs_that_source_alone(tmp_path, trainer):
    offer = publish(trainer, 1)
    sources = ("tcp://[bad:1", "tcp://nowhere", *offer.sources)
    with engine_host(tmp_path) as here:
        assert await here.fetch(offer.model_copy(update={"sources": sources, "publisher_addresses": 1})) == 1
