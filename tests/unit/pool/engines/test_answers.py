"""Answers that an engine cannot have sampled are refused as its own fault."""

import json
import math

import pytest
from aiohttp import web

from rl_agent.pool.engines.answers import Refused, StreamError, WrongAnswer
from tests.unit.pool.engines.adapter_wires import PIECES, by_wire, collect, engine, response

VOCABULARY = 100
BAD_TOKENS = [-7, VOCABULARY, 2**31, 2**40, 2**70, 1.0, True, "12", None]
BAD_LOGPROBS = [50.0, -9999.0, -1e308, None, "x", math.nan, -math.inf, True]


def with_value(event, token=None, logprob=None):
    """The event with one token or logprob replaced, whatever its wire."""
    if "meta_info" in event:
        entries = event["meta_info"]["output_token_logprobs"]
        entries[-1] = [entries[-1][0] if logprob is None else logprob[0], entries[-1][1], None]
        if token is not None:
            entries[-1][1] = token[0]
        return event
    [choice] = event["choices"]
    if token is not None:
        choice["token_ids"][-1] = token[0]
    if logprob is not None and "content" in choice["logprobs"]:
        choice["logprobs"]["content"][-1]["logprob"] = logprob[0]
    elif logprob is not None:
        choice["logprobs"]["token_logprobs"][-1] = logprob[0]
    return event


def spoiled(make, **change):
    """A response whose last event but one holds what cannot be."""
    [(first, text), (second, more), _] = PIECES
    good = make(first, text, None, len(first))
    bad = with_value(make(second, more, None, len(first) + len(second)), **change)
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in (good, bad)]


CHANGES = [{"token": [value]} for value in BAD_TOKENS] + [{"logprob": [value]} for value in BAD_LOGPROBS]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@by_wire
async def test_a_token_or_logprob_that_is_none_is_the_engines_fault(kind, make, change):
    seen = []
    async with engine(kind, lambda _: spoiled(make(), **change)) as link:
        with pytest.raises(WrongAnswer):
            async for chunk in link.generate([1, 2, 3], 64, {}, "r", vocab_size=VOCABULARY):
                seen += chunk.token_ids
    assert seen == [11]  # what came before it counts


@by_wire
async def test_token_id_unknown_to_the_tokenizer_passes_within_the_embedding(kind, make):
    async with engine(kind, lambda _: response(make())) as link:
        for size in (None, 15):
            assert await collect(link, vocab_size=size)
        with pytest.raises(WrongAnswer, match="ends at 14"):
            await collect(link, vocab_size=14)


@by_wire
@pytest.mark.parametrize("fault", ["too many", "no token", "unknown end", "deep", "text"])
async def test_what_else_cannot_be_an_answer_is_the_engines_fault(kind, make, fault):
    limit = 1 if fault == "too many" else 64
    tokens, text, end = {
        "no token": ((), "", "stop"),
        "unknown end": ((11, 12), "so", "banana"),
        "text": ((11, 12), "x" * 100_000, None),
    }.get(fault, ((11, 12), "so", "stop"))
    whole = json.dumps(make()(tokens, text, end, len(tokens))).encode()
    event = b'{"x": ' + b"[" * 100_000 if fault == "deep" else whole
    for interval, body in ((1, b"data: " + event + b"\n\n"), (None, event)):
        async with engine(kind, lambda _, body=body: web.Response(body=body)) as link:
            with pytest.raises(WrongAnswer):
                async for _ in link.generate([1, 2, 3], limit, {}, "r", stream_interval=interval):
                    pass


async def test_an_error_in_a_stream_is_no_wrong_answer_and_its_words_are_bounded():
    words = "\n".join(["no"] * 10_000)
    for code, kind in ((400, Refused), ("400", Refused), ("²", StreamError), (2**70, StreamError)):
        event = {"error": {"message": words, "code": code}}
        body = b"data: " + json.dumps(event).encode() + b"\n\n"
        async with engine("vllm", lambda _, body=body: [body]) as link:
            with pytest.raises(kind) as caught:
                await collect(link)
            assert not isinstance(caught.value, WrongAnswer)
            assert len(str(caught.value)) <= 2000 and "\n" not in str(caught.value)
