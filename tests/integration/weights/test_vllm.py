"""A real vLLM server takes a new version while it runs, and then serves exactly that version."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import torch

from rl_agent.errors import WeightsError
from rl_agent.weights.load.base import TornEngine
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.server.server import WeightServer
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.store import FULL, SnapshotStore
from rl_agent.weights.store.tensor_sources import Checkpoint
from tests.integration.conftest import running_server
from tests.integration.tiny_model import make_tiny_model
from tests.integration.weights.fingerprints import fingerprints, of_vllm
from tests.support.weight_transfers import SERVER, TOKEN, Host, StateDict, announced, new_host, receive
from tests.unit.weights.weight_versions import settings

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(900)]

PROMPTS = [[5, 6, 7, 8], [9, 10, 11, 12, 13, 14], [20, 21], list(range(30, 80))]


@contextlib.contextmanager
def server(model: Path, log_path: Path) -> Iterator[str]:
    with running_server(model, log_path, max_num_seqs=8) as plan:
        yield plan.config.engine.base_url


def train_step(model: Path, target: Path) -> dict[str, torch.Tensor]:
    """One AdamW step of a real loss, large enough to change what is generated; saved as a model, too."""
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(1)
    trained = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    tokens = torch.randint(5, 90, (4, 32))
    trained(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    shutil.copytree(model, target)
    trained.save_pretrained(target)
    return trained.state_dict()


async def complete(
    session: aiohttp.ClientSession, url: str, prompt: list[int], max_tokens: int = 24
) -> list[int]:
    body = {
        "model": (await (await session.get(url + "/v1/models")).json())["data"][0]["id"],
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    async with session.post(url + "/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["choices"][0]["token_ids"]


async def complete_all(url: str) -> list[list[int]]:
    async with aiohttp.ClientSession() as session:
        return [await complete(session, url, prompt) for prompt in PROMPTS]


def test_an_updated_server_generates_as_a_fresh_one_on_the_same_weights(tmp_path):
    first = make_tiny_model(tmp_path / "first", hidden_size=128)
    second = tmp_path / "second"
    trained = train_step(first, second)
    with (
        SnapshotStore(tmp_path / "trainer", keep_versions=3) as trainer_store,
        new_host(tmp_path / "engine-host") as engine_host,
    ):
        publisher = Publisher(trainer_store, settings())
        first_version = publisher.publish(1, Checkpoint.of(first))
        with host_of(trainer_store) as trainer:
            receive(engine_host, announced(first_version), [trainer.source])
            second_version = publisher.publish(2, StateDict.of(trained))
            with server(first, tmp_path / "log-first") as url:
                before = asyncio.run(complete_all(url))
                fresh_first = asyncio.run(fingerprints(url))
                _, report = receive(engine_host, announced(second_version), [trainer.source])
                assert report.deltas == 1
                during, load, held = asyncio.run(update_while_generating(engine_host, url, 2))
                after = asyncio.run(complete_all(url))
                rolled_back = asyncio.run(load_first_again_after_a_failure(engine_host, url))
                after_failure = asyncio.run(complete_all(url))
    with server(second, tmp_path / "log-second") as url:
        expected = asyncio.run(complete_all(url))
        fresh_second = asyncio.run(fingerprints(url))
    print(json.dumps({"pause_s": load.pause_s, "load_s": load.load_s}))
    assert before != expected, "the step changed nothing, so nothing is shown"
    assert after == expected
    assert held == fresh_second != fresh_first
    assert len(during) == 200, "a request that ran through the update lost tokens"
    assert rolled_back == fresh_second
    assert after_failure == expected


@contextlib.contextmanager
def host_of(store: SnapshotStore):
    """Serves a store that somebody else closes."""
    catalog = Catalog(store)
    with WeightServer(catalog, TOKEN, SERVER) as running:
        yield Host(store, catalog, running, None)


async def update_while_generating(engine_host, url, version):
    """The tokens of a request that ran through it, the update's report, and what the engine then holds."""
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        running = group.create_task(complete(session, url, [5, 6, 7], max_tokens=200))
        with engine_host.store.hold(version) as wanted:
            loading = VllmServer(session, url, timeout_s=120)
            report = await loading.load(wanted, previous=None)
        return await running, report, await of_vllm(loading)


async def load_first_again_after_a_failure(engine_host, url):
    """A version with damaged files is refused before the pause; one that fails in the loader is undone."""
    async with aiohttp.ClientSession() as session:
        running = VllmServer(session, url, timeout_s=120)
        with engine_host.store.hold(1) as damaged, engine_host.store.hold(2) as held:
            path = damaged.path(FULL)
            content = path.read_bytes()
            path.write_bytes(content[:-64] + bytes(64))
            with pytest.raises(WeightsError, match="differ from their digests"):
                await running.load(damaged, previous=held)
            path.write_bytes(content)
            misnamed = publish_misnamed(engine_host, held)
            with engine_host.store.hold(3), pytest.raises(WeightsError) as caught:
                await running.load(misnamed, previous=held)
            assert not isinstance(caught.value, TornEngine), str(caught.value)
        return await of_vllm(running)


def publish_misnamed(engine_host, held):
    state = {"model.layers.0.nothing.weight": torch.ones(4, 4, dtype=torch.bfloat16)}
    return Publisher(engine_host.store, settings()).publish(3, StateDict.of(state))
