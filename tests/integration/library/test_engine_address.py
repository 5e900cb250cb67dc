"""Engines and hosted models by their addresses: with tokens where the server tells them."""

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rl_agent import collect
from rl_agent.errors import ConfigError
from tests.support.rollout_setup import simulated_engine

TASKS = [{"prompt": f"{number} + 1 ="} for number in range(4)]
SHORT = {"reward": lambda completion: float(len(completion)), "max_tokens": 6}
SHORT_REWARD = "its responses have no tokens and logprobs: good to evaluate"


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
