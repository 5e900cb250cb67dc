"""A server whose model is split over two workers takes full versions and differences while it generates."""

import asyncio
import os
from contextlib import contextmanager

import pytest

from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import SnapshotStore
from rl_agent.weights.store.tensor_sources import Checkpoint
from tests.integration.conftest import running_server
from tests.integration.tiny_model import make_tiny_model
from tests.integration.weights.fingerprints import fingerprints
from tests.integration.weights.test_vllm import (
    complete_all,
    host_of,
    load_first_again_after_a_failure,
    train_step,
    update_while_generating,
)
from tests.support.weight_transfers import StateDict, announced, new_host, receive
from tests.unit.weights.weight_versions import settings

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(3000)]


@contextmanager
def split_server(model, log_path):
    """Two workers that share each layer, each on a core of its own where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    words = (
        "engine.tensor_parallel_size=2",
        "engine.extra_args.distributed-executor-backend=mp",
        # Left alone, vLLM wants a NUMA node for each.
        f"+engine.extra_env.VLLM_CPU_OMP_THREADS_BIND='{cores[0]}|{cores[-1]}'",
    )
    with running_server(model, log_path, *words, max_num_seqs=8) as plan:
        yield plan.config.engine.base_url


def fresh(model, log_path):
    """Return the weights of a server that is started on `model`, and what it generates."""
    with split_server(model, log_path) as url:
        return asyncio.run(fingerprints(url)), asyncio.run(complete_all(url))


def test_every_worker_of_a_split_model_gets_its_share_of_full_and_delta(tmp_path):
    first = make_tiny_model(tmp_path / "first", hidden_size=128)
    second, third = tmp_path / "second", tmp_path / "third"
    train_step(first, second)
    trained = train_step(second, third)
    with (
        SnapshotStore(tmp_path / "trainer", keep_versions=3) as trainer_store,
        new_host(tmp_path / "engine-host") as engine_host,
        host_of(trainer_store) as trainer,
        split_server(first, tmp_path / "log-first") as url,
    ):
        publisher = Publisher(trainer_store, settings())
        as_started = asyncio.run(fingerprints(url))

        first_version = publisher.publish(1, Checkpoint.of(second))
        _, whole = receive(engine_host, announced(first_version), [trainer.source])
        during_full, _, full = asyncio.run(update_while_generating(engine_host, url, 1))
        after_full = asyncio.run(complete_all(url))

        second_version = publisher.publish(2, StateDict.of(trained))
        _, difference = receive(engine_host, announced(second_version), [trainer.source])
        during_delta, _, delta = asyncio.run(update_while_generating(engine_host, url, 2))
        after_delta = asyncio.run(complete_all(url))

        after_failure = asyncio.run(load_first_again_after_a_failure(engine_host, url))
        still = asyncio.run(complete_all(url))

    assert (whole.deltas, difference.deltas) == (0, 1)
    assert len(during_full) == len(during_delta) == 200, "a request lost tokens through an update"
    assert len(as_started) == 2
    assert as_started[0] != as_started[1], "both workers hold the same: nothing was split"
    assert (full, after_full) == fresh(second, tmp_path / "log-second")
    assert (delta, after_delta) == fresh(third, tmp_path / "log-third")
    assert (after_failure, still) == (delta, after_delta)
    assert len({as_started, full, delta}) == 3, "the steps changed nothing"
