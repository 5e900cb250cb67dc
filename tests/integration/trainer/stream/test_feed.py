"""A trainer that was started again gives its version to a real manager."""

import asyncio
import contextlib

import pytest
from yarl import URL

from rl_agent.errors import ConfigError, DeadlineError, RetryLater
from rl_agent.system.files import remove
from rl_agent.trainer.grpo.model.parallel import join_ranks
from rl_agent.trainer.grpo.publish import feed as feed_module
from rl_agent.trainer.grpo.publish.feed import WeightFeed
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.sources.source_tcp import TcpSource
from rl_agent.weights.store.store import open_snapshot
from tests.integration.trainer.settings import batch_settings
from tests.integration.trainer.stream.publisher import Policy
from tests.integration.trainer.stream.stream_run import stream_settings
from tests.support.pool_setup import manager


@pytest.fixture
def ranks(monkeypatch):
    address = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (address | {"MASTER_PORT": "0"}).items():
        monkeypatch.setenv(name, value)
    with join_ranks(1, timeout_s=30) as joined:
        yield joined


async def give(settings, ranks, *weights, **batch):
    """One life of a trainer that publishes each of `weights` as its next version, from 1 on; the numbers."""

    def life():
        numbers, recorded = [], []
        with WeightFeed(settings, ranks, dtype="float32", batch=batch_settings(**batch)) as feed:
            for value in weights:
                number = numbers[-1] + 1 if numbers else 1
                numbers.append(feed.publish(number, Policy(value), recorded.append))
                feed.wait_until_known(10, lambda: False)
        assert recorded == numbers, "a number that is written down once, and is the one that is used"
        return numbers

    return await asyncio.to_thread(life)


async def give_unasked(settings, ranks, *, known_within_s):
    """The same for one weight, by a trainer whose manager did not answer which numbers it knows."""

    def life():
        with WeightFeed(settings, ranks, dtype="float32", batch=batch_settings()) as feed:
            feed._host.announcer.ask_pool = lambda: None
            feed.publish(1, Policy(0.5), lambda number: None)
            feed.wait_until_known(known_within_s, lambda: False)

    await asyncio.to_thread(life)


def served(pool):
    return pool.state.weights.weight_version, pool.state.weights.digest


async def test_the_same_weights_go_on_being_served_under_their_number(tmp_path, ranks):
    async with manager() as pool:
        settings = stream_settings(tmp_path, tmp_path, pool.url).stream
        assert await give(settings, ranks, 0.5) == [1]
        before, address = served(pool), pool.state.weights.sources
        assert await give(settings, ranks, 0.5) == [1]
        assert served(pool) == before
        assert pool.state.weights.sources != address
        assert [path.name for path in settings.store.glob("*-*")] == ["version-000001"]


@pytest.mark.parametrize(("allows", "finish_within_s"), [(True, None), (False, 60.0)])
async def test_the_pool_is_told_what_the_trainer_takes(tmp_path, ranks, allows, finish_within_s):
    async with manager() as pool:
        settings = stream_settings(tmp_path, tmp_path, pool.url).stream
        await give(settings, ranks, 0.5, 1.0, max_staleness=1, allow_mixed_versions=allows)
        told = pool.state.weights
    assert (told.weight_version, told.useful_from, told.finish_within_s) == (2, 1, finish_within_s)
    assert told.delta_digest == open_snapshot(settings.store, 2).manifest.delta_digest is not None


async def test_every_address_of_the_trainer_is_announced_and_gives_the_version(tmp_path, ranks):
    async with manager() as pool:
        stream = stream_settings(tmp_path, tmp_path, pool.url).stream
        weights = stream.weights.model_copy(update={"host": ("127.0.0.1", "127.0.0.2")})
        settings = stream.model_copy(update={"weights": weights})

        def life():
            with WeightFeed(settings, ranks, dtype="float32", batch=batch_settings()) as feed:
                feed.publish(1, Policy(0.5), lambda number: None)
                feed.wait_until_known(10, lambda: False)
                known = pool.state.weights
                urls = [URL(source) for source in known.sources]
                given = []
                for url in urls:
                    source = TcpSource(url.host, url.port, known.transfer_token.encode(), 5.0)
                    with contextlib.closing(source.connection()) as connection:
                        connection.open(Deadline.after(10))
                        given.append(connection.manifest(1, known.digest, Deadline.after(10)).digest)
            return [url.host for url in urls], given == [known.digest] * 2

        assert await asyncio.to_thread(life) == (["127.0.0.1", "127.0.0.2"], True)


async def test_other_weights_get_a_number_that_was_not_used(tmp_path, ranks):
    async with manager() as pool:
        settings = stream_settings(tmp_path, tmp_path, pool.url).stream
        assert await give(settings, ranks, 0.5) == [1]
        before = served(pool)
        assert await give(settings, ranks, 0.25, 0.125) == [2, 3]
        assert served(pool)[0] == 3
        assert served(pool)[1] != before[1]


async def test_a_store_that_was_lost_is_no_reason_to_use_a_number_again(tmp_path, ranks):
    async with manager() as pool:
        settings = stream_settings(tmp_path, tmp_path, pool.url).stream
        assert await give(settings, ranks, 0.5, 0.25, 0.125) == [1, 2, 3]
        remove(settings.store)
        assert await give(settings, ranks, 0.5, 0.75) == [4, 5]
        assert served(pool)[0] == 5


async def test_a_version_that_the_manager_does_not_take_is_not_taken_for_known(tmp_path, ranks):
    async with manager() as pool:
        settings = stream_settings(tmp_path, tmp_path, pool.url).stream
        assert await give(settings, ranks, 0.5, 0.25) == [1, 2]
        remove(settings.store)

        with pytest.raises(DeadlineError, match="serves other weights as version 2"):
            await give_unasked(settings, ranks, known_within_s=1)


async def test_a_version_refused_for_good_ends_this_start_before_the_deadline(tmp_path, ranks, monkeypatch):
    monkeypatch.setattr(feed_module, "REFUSED_S", 0.2)
    async with manager() as pool:
        settings = stream_settings(tmp_path, tmp_path, pool.url).stream
        assert await give(settings, ranks, 0.5, 0.25) == [1, 2]
        remove(settings.store)

        with pytest.raises(
            RetryLater, match=r"serves other weights as version 2; the next start gives these"
        ):
            await give_unasked(settings, ranks, known_within_s=1000)
        assert await give(settings, ranks, 0.5) == [3]


@pytest.mark.parametrize(
    ("token", "path", "raised", "words"),
    [
        ("another", "", RetryLater, "the token is missing or wrong; the next start reads the token again"),
        ("right", "/elsewhere", ConfigError, "answers 404"),
    ],
)
async def test_a_manager_that_lets_nobody_in_is_named_long_before_the_deadline(
    tmp_path, ranks, monkeypatch, token, path, raised, words
):
    monkeypatch.setattr(feed_module, "REFUSED_S", 0.2)
    monkeypatch.setenv("POOL_TOKEN", token)
    file = tmp_path / "token"
    file.write_text("right\n")
    file.chmod(0o600)
    async with manager(f"token_file={file}") as pool:
        changes = {"manager_token_env_var": "POOL_TOKEN"}
        settings = stream_settings(tmp_path, tmp_path, pool.url + path, **changes).stream

        def life():
            with WeightFeed(settings, ranks, dtype="float32", batch=batch_settings()) as feed:
                feed.publish(1, Policy(0.5), lambda number: None)
                feed.wait_until_known(1000, lambda: False)

        with pytest.raises(raised, match=words):
            await asyncio.to_thread(life)
