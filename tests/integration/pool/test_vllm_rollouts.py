"""A rollout gets from the pool over real vLLM servers what one engine gives without it."""

import pytest

from rl_agent.cluster.member.member import Member
from rl_agent.engine.packed import PATH
from rl_agent.engine.wire import Sampling
from rl_agent.rollout.run import run_rollout
from rl_agent.rollout.sample import Assignment
from tests.integration.pool.test_vllm import REST, SLOW, CuttingProxy, by_tokens
from tests.integration.runs.one_server.test_collector import with_tasks
from tests.support.pool_setup import manager

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(300)]


async def test_a_rollout_uses_a_pool_as_it_uses_one_engine(vllm_server):
    proxy = CuttingProxy(vllm_server.url, 4, [0] * 10)
    async with (
        manager(*SLOW, "max_broken_attempts=1000", "stream_interval=1") as pool,
        proxy.running() as url,
    ):
        await pool.join_ready(url)
        plan = with_tasks(vllm_server.plan, count=8)
        engine = plan.config.engine.model_copy(update={"url": pool.url})
        # A pool is not asked for weights that one engine took in place.
        weights = plan.config.weights.model_copy(update={"update": "restart"})
        config = plan.config.model_copy(update={"engine": engine, "weights": weights})
        plan = plan.model_copy(update={"config": config})
        counts = await run_rollout(Assignment(plan, "train", 7, resume=False), Member.alone(plan))
        assert pool.state.account.failed == 0
    assert counts.submitted == 8 and counts.is_all_completed
    assert len(proxy.cuts) < 10, "nothing was cut"
    assert proxy.requests[PATH] >= 8 and not proxy.requests["/v1/completions"]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_responses_by_tokens_and_by_text_are_equal_across_interruptions(vllm_server, temperature):
    """A random model gives bytes that are no characters, characters of several tokens, ends of turn."""
    sampling = Sampling(temperature, *REST)
    wanted = await by_tokens(vllm_server.url, vllm_server.model, sampling, with_text=True)
    # A seed is another one after a move, so that only greedy responses are the same over cuts.
    proxy = CuttingProxy(vllm_server.url, 5, [0] * (10 if temperature == 0 else 0))
    words = ("max_broken_attempts=1000", "stream_interval=1")
    async with manager(*SLOW, *words) as pool, proxy.running() as url:
        await pool.join_ready(url)
        responses = await by_tokens(pool.url, vllm_server.model, sampling)
        assert pool.state.account.moves >= (10 if temperature == 0 else 0)
    assert not proxy.cuts and not proxy.requests["/v1/completions"]
    for alone, response in zip(wanted, responses, strict=True):
        assert (alone.token_ids, alone.finish_reason) == (response.token_ids, response.finish_reason)
        assert response.logprobs == pytest.approx(alone.logprobs, abs=1e-3)
        assert response.text == alone.text
    assert any(not alone.text.isascii() for alone in wanted)
    assert temperature == 0 or {alone.finish_reason for alone in wanted} == {"stop", "length"}
