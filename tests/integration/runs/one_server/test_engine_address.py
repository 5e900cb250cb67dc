"""A real vLLM and a pool by their addresses: episodes with tokens, or with text alone where that is asked."""

import pytest

from rl_agent import collect
from tests.integration.library.test_engine_address import SHORT, SHORT_REWARD, TASKS
from tests.support.pool_setup import manager

pytestmark = pytest.mark.vllm


async def test_vllm_gives_tokens_of_its_own_and_text_alone_where_asked(vllm_server, caplog):
    episodes = await collect(TASKS, f"{vllm_server.url}/v1", **SHORT)
    assert all(len(episode.steps[0].generation.logprobs) > 0 for episode in episodes)
    assert SHORT_REWARD not in caplog.text

    episodes = await collect(TASKS, vllm_server.url, tokens=False, **SHORT)
    generations = [episode.steps[0].generation for episode in episodes]
    assert [generation.token_ids for generation in generations] == [()] * 4
    assert any(generation.text for generation in generations) and SHORT_REWARD in caplog.text


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
