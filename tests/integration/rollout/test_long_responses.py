"""Responses of a model that collapsed: a tag or half a character, over and over, up to its limit of tokens.

Nothing that reads one may take quadratic time, or keep the event loop from turning. What was quadratic takes
an hour with texts of this length, so that the tests' time limit would end it.
"""

import asyncio
import json
import re
import threading
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.chat.parse import parse_action
from rl_agent.engine import wire
from rl_agent.env import single_turn
from rl_agent.env.answer import final_answer, is_tagged, last_box
from rl_agent.env.gymnasium import _number_of
from rl_agent.env.math import MathEnvironment
from rl_agent.env.plain_answers import says_words, stated_number, whole_number
from rl_agent.env.safe_eval import only_mathematics
from rl_agent.judge.judge_prompt import UnreadableAnswer, read_verdict
from rl_agent.pool.engines.sse import EventReader
from rl_agent.pool.scheduler.migration import find_stop
from rl_agent.pool.scheduler.records import Order, Request, RequestId
from rl_agent.rollout.collector import conversation
from rl_agent.system.off_loop import SMALL, off_loop
from tests.support.tiny_chat import tiny_chat, tiny_tokenizer
from tests.unit.judge.judge_api import trajectory
from tests.unit.rollout.episodes import SAMPLING, FakeEngine, make_spec, run_episode

MANY = 100_000
TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<thi", "nk>", "</", "x", " ", "\n", "4"]
UNCLOSED = {
    "thoughts": "<think>" * MANY,
    "answers": "<answer>" * MANY,
    "both": "<think><answer>" * MANY,
    "nested": "<think>" * MANY + "</think>" * MANY,
    "nested answers": "<answer>" * MANY + "</answer>" * MANY,
    "half tags": "<think" * MANY + "<answer>" * MANY + "</answer",
    "closed": "<think>a</think>4<answer>5</answer>" * MANY,
    "channels": "<|channel|>" * MANY + "[THINK]" * MANY,
    "dots": ". " * MANY + "left",
    "boxes": "\\boxed{" * MANY + "}" * MANY,
    "numbers": "1 000," * MANY + "x",
    "digits": "7" * MANY + " / ",
    "fractions": "1 \\frac{2}{" * MANY,
    "units": "3 m " * MANY + "^",
    "answers are": "the answer is " * MANY,
    "operators": "1 - " * MANY,
    "blanks after a number": "5" + " " * MANY + "{ , }" + "\\text{" * MANY,
    "blanks": " " * MANY + "x" + "\n" * MANY,
    "braces": '{"verdict": ' * MANY,
    "lines": '{"verdict": "SUCCESS"\n' * MANY,
}


def refuse_expression(text):
    with pytest.raises(ValueError, match="not a mathematical expression"):
        only_mathematics(lambda text: None)(text + " __import__")


def refuse_verdict(text):
    with pytest.raises(UnreadableAnswer, match="not one JSON object"):
        read_verdict(text, "stop")


PARSERS = {
    "action": parse_action,
    "final answer": final_answer,
    "is tagged": is_tagged,
    "last box": last_box,
    "whole number": whole_number,
    "stated number": stated_number,
    "words": lambda text: says_words("yes", text, is_alone=False),
    "game action": lambda text: _number_of(text, ("left", "right")),
    "verdict": refuse_verdict,
    "expression": refuse_expression,
    "math request": lambda text: MathEnvironment().request(make_spec().task, text),
}


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
@pytest.mark.parametrize("text", UNCLOSED.values(), ids=UNCLOSED)
def test_a_parser_takes_no_longer_than_the_text_is_long(parse, text):
    parse(text)


def by_regular_expressions(response):
    """Read a response as earlier code did, in quadratic time."""
    spoken = re.sub(r"<think>.*?</think>", "", response, flags=re.DOTALL).rpartition("</think>")[2]
    conclusion = response.rpartition("</think>")[2]
    tagged = re.findall(r"<answer>(.*?)</answer>", conclusion, re.DOTALL)
    final = (tagged[-1] if tagged else conclusion).strip()
    return spoken.partition("<think>")[0].strip(), final, bool(tagged)


@given(st.lists(st.sampled_from(TAGS), max_size=30).map("".join))
def test_tags_are_found_as_by_regular_expressions(response):
    parsed = parse_action(response), final_answer(response), is_tagged(response)
    assert parsed == by_regular_expressions(response)


def test_endless_half_characters_are_decoded_and_the_rest_is_read():
    chat, tokenizer = tiny_chat(), tiny_tokenizer()
    half = [token for token in range(tokenizer.get_vocab_size()) if tokenizer.decode([token]) == "\ufffd"][-1]
    hello, broken = tokenizer.encode("hello").ids, tokenizer.encode("é").ids[:1]

    assert chat.decode_after([5], [half] * MANY) == ""
    assert chat.decode_after([half] * 1000, [half] * MANY) == ""
    for silence in (20, 1000, MANY):
        text = chat.decode_after([5], [half] * silence + hello + broken)
        assert text == "\ufffd" * silence + "hello"


def test_a_stop_string_is_looked_for_in_new_text_alone():
    order = Order(RequestId("run", "r"), (1,), 10 * MANY, {"stop": ["</stop>"]}, deadline=1e9)
    request = Request(order, 0, 0.0)
    for text in ["<"] * 2 * MANY + ["</st", "op>", "!"]:
        request.texts.append(text)
        if find_stop(request, text):
            break
    assert "".join(request.texts) == "<" * 2 * MANY


def test_an_event_that_comes_byte_by_byte_is_joined_once():
    reader = EventReader()
    for part in [b"data: "] + [b"x" * 150] * MANY:
        assert reader.feed(part) == []
    assert reader.feed(b"y\n\ndata: z\nda") == [b"x" * 150 * MANY + b"y", b"z"]
    assert reader.feed(b"ta: w\n") == [b"w"]


class Heartbeat:
    """`wait` ends once the event loop has turned; in the loop's own thread it never would."""

    def __init__(self):
        self._is_waited_for = threading.Event()
        self._has_turned = threading.Event()

    def wait(self):
        self._is_waited_for.set()
        assert self._has_turned.wait(20), "the event loop stood still meanwhile"

    @asynccontextmanager
    async def beating(self):
        async def beat():
            while True:
                if self._is_waited_for.is_set():
                    self._has_turned.set()
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as jobs:
            job = jobs.create_task(beat())
            yield
            job.cancel()
        assert self._has_turned.is_set(), "nothing waited"


LONG = "<think>" * (SMALL // 7 + 1)


class Verifier:
    """Stands in for the processes that verify."""

    def __init__(self, questions):
        self.questions = questions

    async def score(self, request, timeout_s):
        self.questions.append(request)
        return 1.0


@pytest.mark.parametrize("stage", ["parsing", "verification"])
async def test_the_loop_turns_while_an_episode_with_a_long_response_is_judged(stage, monkeypatch):
    heartbeat, questions = Heartbeat(), []

    class Slow(MathEnvironment):
        def request(self, task, response):
            if stage == "verification":
                heartbeat.wait()
            return super().request(task, response) | {"answer": "4x"}  # no plain number

    def slow_action(text, opened):
        if stage == "parsing":
            heartbeat.wait()
        return "4" + parse_action(text) + "4" * SMALL

    monkeypatch.setattr(conversation, "parse_action", slow_action)
    monkeypatch.setattr(single_turn, "shared_pool", lambda kind, workers: Verifier(questions))
    async with heartbeat.beating():
        recorded = await run_episode(Slow(), FakeEngine(LONG), episode_timeout_s=60, step_timeout_s=60)

    assert recorded.reward == 1.0, recorded.failure
    assert questions[0]["response"] == "4" * (SMALL + 1)


async def test_the_loop_turns_while_a_long_answer_of_an_engine_is_read(monkeypatch):
    from tests.unit.engine.test_client import Script, connected

    heartbeat = Heartbeat()
    text = "x" * SMALL
    choice = {"text": text, "token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}
    read, make = wire.read_completion, wire.completion_request

    def slowly(call):
        def wait(*arguments, **named):
            heartbeat.wait()
            return call(*arguments, **named)

        return wait

    monkeypatch.setattr(wire, "read_completion", slowly(read))
    monkeypatch.setattr(wire, "completion_request", slowly(make))
    card = {"id": "m", "root": "/m", "max_model_len": 10 * SMALL}
    monkeypatch.setattr("tests.unit.engine.test_client.CARD", card)
    async with connected(Script({"choices": [choice]}), timeout_s=60) as client, heartbeat.beating():
        generated = await client.generate([1] * (SMALL + 1), SAMPLING, request_id="r")

    assert generated.text == text


async def test_the_loop_turns_while_a_long_episode_is_written_down_for_the_judge(tmp_path, monkeypatch):
    from rl_agent.judge import judge_prompt
    from tests.unit.judge.judge_api import APPROVES, Api, completion, judge_at

    monkeypatch.setenv("JUDGE_KEY", "secret")
    heartbeat, ask = Heartbeat(), judge_prompt.verdict_messages

    def slowly(*arguments):
        heartbeat.wait()
        return ask(*arguments)

    monkeypatch.setattr(judge_prompt, "verdict_messages", slowly)
    api = Api(completion(APPROVES))
    async with judge_at(api, tmp_path, timeout_s=60) as model, heartbeat.beating():
        verdict = await model(trajectory(LONG))

    assert verdict.reward == 1.0
    evidence = api.requests[0][1]["messages"][1]["content"].partition("\n")[2].partition("\nEND EVIDENCE")[0]
    assert LONG in json.loads(evidence)["transcript"][0]["response"]


async def test_short_responses_decode_at_once_and_errors_return_from_both_places():
    assert await off_loop(SMALL, threading.current_thread) is threading.current_thread()
    assert await off_loop(SMALL + 1, threading.current_thread) is not threading.current_thread()
    for size in (1, SMALL + 1):
        with pytest.raises(ZeroDivisionError):
            await off_loop(size, divmod, 1, 0)
