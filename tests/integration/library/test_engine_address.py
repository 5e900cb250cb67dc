"""Engines, pools and hosted models by their addresses: with tokens where the server tells them."""

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rl_agent import collect
from rl_agent.errors import ConfigError
from tests.support.pool_setup import manager
from tests.support.rollout_setup import simulated_engine

TASKS = [{"prompt": f"{number} + 1 ="} for number in range(4)]
SHORT = {"reward": lambda completion: float(len(completion)), "max_tokens": 6}
SHORT_REWARD = "its responses have no tokens and logprobs: good to evaluate"


@pytest.mark.vllm
async def test_vllm_gives_tokens_of_its_own_and_text_alone_where_asked(vllm_server, caplog):
    episodes = await collect(TASKS, f"{vllm_server.url}/v1", **SHORT)
    assert all(len(episode.steps[0].generation.logprobs) > 0 for episode in episodes)
    assert SHORT_REWARD not in caplog.text

    episodes = await collect(TASKS, vllm_server.url, tokens=False, **SHORT)
    generations = [episode.steps[0].generation for episode in episodes]
    assert [generation.token_ids for generation in generations] == [()] * 4
    assert any(generation.text for generation in generations) and SHORT_REWARD in caplog.text


@pytest.mark.vllm
async def test_a_pool_gives_tokens_and_the_version_of_its_engine(vllm_server, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret of the pool")
    token.chmod(0o600)
    async with manager(f"token_file={token}", f"model={vllm_server.model}", "weight_version=3") as pool:
        pool.session.headers["Authorization"] = "Bearer secret of the pool"
        await pool.join_ready(vllm_server.url)
        collected = collect(TASKS, pool.url, api_key="secret of the pool", group_size=2, **SHORT)
        groups = await collected.groups()
    steps = [episode.steps[0] for group in groups for episode in group]
    assert len(steps) == 8 and all(len(step.generation.logprobs) > 0 for step in steps)
    assert {step.generation.weight_version_min for step in steps} == {3}


async def test_a_server_that_is_not_vllm_answers_text(caplog):
    async def handle(request):
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "gpt", "object": "model"}]})
        if request.path != "/v1/chat/completions":
            return web.Response(status=404)
        choice = {"message": {"role": "assistant", "content": "two"}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    async with RawTestServer(handle) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        episodes = await collect(TASKS, url, **SHORT)
        assert [episode.reward for episode in episodes] == [3.0] * 4
        assert SHORT_REWARD in caplog.text
        with pytest.raises(ConfigError, match="needs an engine that tells tokens"):
            await collect(TASKS, url, settings=["policy_config.action_format=tool_calls"], **SHORT)


async def test_a_tokenizer_that_is_not_here_is_named_with_both_remedies(tmp_path):
    with (
        simulated_engine(tmp_path) as url,
        pytest.raises(ConfigError, match=r"model: its tokenizer .* give model=FOLDER.* or tokens=False"),
    ):
        await collect(TASKS, url, **SHORT)
