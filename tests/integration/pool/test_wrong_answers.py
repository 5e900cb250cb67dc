"""Engines that lie over the manager's real HTTP: the run ends whole, and it is told who lied."""

import json

import pytest
from aiohttp import web

from tests.support.pool_setup import are_exact, item, manager
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import StreamingEngine, serving

VOCABULARY = 1100
"""Above all tokens of the simulated engines."""


class Liar(StreamingEngine):
    """Answers right up to the tenth token, then what `lie` makes of it; on other routes its `pages`."""

    def __init__(self, lie=None, pages=None, **more):
        super().__init__(Behaviour(**more), interval_s=0.001)
        self.lie = lie
        self.pages = pages or {}

    async def handle(self, request):
        page = self.pages.get(request.path)
        return await super().handle(request) if page is None else web.Response(body=page)

    def event_of(self, tokens, finish_reason, total):
        event = super().event_of(tokens, finish_reason, total)
        if self.lie is not None and (total > 9 or finish_reason):
            self.lie(event["choices"][0])
        return event


def token(value):
    return lambda choice: choice["token_ids"].__setitem__(-1, value)


def logprob(value):
    return lambda choice: choice["logprobs"]["token_logprobs"].__setitem__(-1, value)


LIES = {
    "negative": token(-7),
    "huge": token(2**40),
    "outside": token(VOCABULARY),
    "certain": logprob(50.0),
    "impossible": logprob(-9999.0),
    "nan": logprob(float("nan")),
    "end": lambda choice: choice.update(finish_reason="banana"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_a_batch_ends_whole_beside_an_engine_that_lies(lie):
    async with manager("lease_s=30") as pool, serving(Liar(lie)) as bad, serving(Liar()) as good:
        await pool.join_ready(bad.url, good.url)
        items = [item(number, 30, vocab_size=VOCABULARY) for number in range(40)]
        assert (await pool.call("POST", "/runs/run/requests", {"requests": items}))[0] == 202
        samples = await pool.samples("run", at_least=40)
        assert {sample["failure"] for sample in samples} == {""}
        assert are_exact(samples, 30)
        assert all(-2 < value <= 0 for sample in samples for value in sample["logprobs"])
        _, status = await pool.call("GET", "/status")
        by_url = {engine["name"]: engine for engine in status["engines"]}
        assert by_url[bad.url]["is_quarantined"] and not by_url[good.url]["is_quarantined"]
        assert by_url[bad.url]["wrong_answers"] == status["wrong_answers"] >= 3
        assert "it answers wrongly" in by_url[bad.url]["reason"]
        _, metrics = await pool.call("GET", "/metrics")
        assert f"rl_pool_wrong_answers_total {status['wrong_answers']}.0" in metrics


async def test_manager_reads_the_vocabulary_size_from_the_model_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": VOCABULARY}}))
    liar, honest = Liar(LIES["outside"], root=str(tmp_path)), Liar(root=str(tmp_path))
    async with manager() as pool, serving(liar) as bad, serving(honest) as good:
        await pool.join_ready(bad.url, good.url)
        await pool.submit("run", [30] * 20)
        assert are_exact(await pool.samples("run", at_least=20), 30)
        assert pool.state.account.wrong_answers


@pytest.mark.parametrize(
    "pages",
    [
        {"/metrics": b"vllm:num_requests_running inf\nvllm:num_requests_waiting x\n"},
        {"/metrics": b"vllm:num_requests_running{\n" * 200_000},
        {"/openapi.json": b"[" * 100_000},
        {"/openapi.json": b'{"paths": ' * 100_000},
        {"/openapi.json": b'{"paths": 3}'},
        {"/v1/models": b'{"data": [{"id": "m", "root": "m", "max_model_len": -5}]}'},
        {"/v1/models": b'{"data": [{"id": "m", "root": "m", "max_model_len": 1e300}]}'},
        {"/v1/models": b'{"data": [{"id": "m", "root": ["m"], "max_model_len": 5}]}'},
        {"/v1/models": b"[" * 100_000},
        {"/health": b"\xff" * 100_000},
    ],
    ids=lambda pages: str(pages)[:50],
)
async def test_false_engine_descriptions_disturb_no_other_engine(pages):
    async with manager() as pool, serving(Liar(pages=pages)) as bad, serving(Liar()) as good:
        await pool.join_ready(good.url)
        await pool.join(bad.url)
        await pool.submit("run", [30] * 20)
        assert are_exact(await pool.samples("run", at_least=20), 30)
        assert (await pool.call("GET", "/health"))[0] == 200
