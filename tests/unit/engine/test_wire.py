import json
import math
from dataclasses import replace

import pytest

from rl_agent.engine import wire
from rl_agent.engine.wire import EnginePressure, Sampling, ServedModel
from rl_agent.errors import EngineError
from rl_agent.types import TokenSpan
from tests.support.simulated_engine import completion

SAMPLING = Sampling(temperature=0.7, top_p=0.9, top_k=-1, min_p=0.1, max_tokens=5, seed=3)


def test_a_completion_request_leaves_no_sampling_parameter_to_the_server():
    body = json.loads(wire.completion_request("m", [1, 2], SAMPLING, "task:0:0:1"))

    assert body == {
        "model": "m",
        "prompt": [1, 2],
        "request_id": "task:0:0:1",
        "max_tokens": 5,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "repetition_penalty": 1.0,
        "seed": 3,
        "logprobs": 0,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }


@pytest.mark.parametrize("tokens", [(), (2,)])
def test_a_token_that_ends_a_response_is_sent_where_it_is_set(tokens):
    sampling = replace(SAMPLING, stop_token_ids=tokens)
    for body in (
        wire.completion_request("m", [1], sampling, "r"),
        wire.chat_request("m", [], sampling, "r", {}),
    ):
        assert json.loads(body).get("stop_token_ids", []) == list(tokens)


def test_a_completion_becomes_token_ids_with_a_logprob_each():
    response = wire.read_completion(json.dumps(completion(3, 3)).encode(), sampling=SAMPLING)

    assert response == wire.Response((18, 19, 2), (-0.5, -0.515625, -0.53125), "01", "stop")


@pytest.mark.parametrize("text", ["", "something that the tokens do not say"])
def test_the_text_is_what_all_tokens_but_the_one_that_ended_it_say(text):
    def decode(token_ids):
        return ",".join(map(str, token_ids))

    for tokens, wanted, expected in ((3, 3, "18,19"), (3, 8, "18,19,20")):
        answer = completion(tokens, wanted)
        answer["choices"][0]["text"] = text
        read = wire.read_completion(json.dumps(answer).encode(), decode, sampling=SAMPLING)
        assert read.text == expected


def test_a_stop_string_is_among_the_tokens_and_not_in_the_text():
    """A pool's engine sampled one more token before it was told."""
    answer = completion(5, 5)
    choice = answer["choices"][0]
    keys = ("start", "engine_id", "weight_version")
    spans = [dict(zip(keys, span, strict=True)) for span in ((0, "a", 3), (2, "b", 4), (4, "c", 4))]
    choice |= {"stop_reason": "END", "weight_versions": spans}
    texts = dict(zip(choice["token_ids"], ["It ", "is. E", "N", "D of", " it"], strict=True))
    sampling = replace(SAMPLING, stop=("END", "x"))
    read = wire.read_completion(
        json.dumps(answer).encode(),
        lambda tokens: "".join(texts[token] for token in tokens),
        sampling=sampling,
    )
    assert (read.text, read.finish_reason) == ("It is. ", "stop")
    assert read.token_ids == tuple(choice["token_ids"][:4])
    assert len(read.logprobs) == 4
    assert read.spans == (TokenSpan(2, 3, "a"), TokenSpan(2, 4, "b"))
    assert json.loads(wire.completion_request("m", [1], sampling, "r"))["stop"] == ["END", "x"]


def test_only_the_maker_of_the_text_declares_that_none_is_needed():
    assert b"detokenize" not in wire.completion_request("m", [1, 2], SAMPLING, "r")
    body = json.loads(wire.completion_request("m", [1, 2], SAMPLING, "r", needs_text=False))
    assert body["detokenize"] is False


def of_a_pool(*spans):
    answer = completion(3, 3)
    keys = ("start", "engine_id", "weight_version")
    answer["choices"][0]["weight_versions"] = [dict(zip(keys, span, strict=True)) for span in spans]
    return json.dumps(answer).encode()


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, "a", 3)], [(3, 3, "a")]),
        ([(0, "a", 3), (1, "b", 4)], [(1, 3, "a"), (2, 4, "b")]),
        ([(0, "a", 3), (0, "b", 4)], [(3, 4, "b")]),  # the first one gave none in the end
        ([(0, "a", 3), (3, "b", 4)], [(3, 3, "a")]),
        ([], []),
    ],
)
def test_a_pool_says_which_engine_made_how_many_tokens_with_which_weights(spans, expected):
    read = wire.read_completion(of_a_pool(*spans), sampling=SAMPLING)
    assert read.spans == tuple(TokenSpan(*span) for span in expected)


@pytest.mark.parametrize(
    "spans", [[(1, "a", 3)], [(0, "a", 3), (4, "b", 3)], [(0, "a", 3), (2, "b", 3), (1, "c", 3)]]
)
def test_spans_that_are_not_those_of_its_tokens_are_refused(spans):
    with pytest.raises(EngineError, match="weight_versions begin at"):
        wire.read_completion(of_a_pool(*spans), sampling=SAMPLING)


def broken(change):
    answer = completion(3, 3)
    change(answer["choices"])
    return json.dumps(answer).encode()


def with_logprobs(values):
    return broken(lambda choices: choices[0]["logprobs"].update(token_logprobs=values))


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"<html>", "JSON is malformed"),
        (b"{}", "has 0 choices"),
        (broken(lambda choices: choices.clear()), "has 0 choices"),
        (broken(lambda choices: choices[0].pop("token_ids")), "token_ids"),
        (broken(lambda choices: choices[0].update(logprobs=None)), "logprobs"),
        (with_logprobs([-0.5, -0.5]), "3 token ids with 2 logprobs"),
        (with_logprobs([None] * 3), "token_logprobs"),
        (broken(lambda choices: choices[0].update(token_ids=[10, 11, -7])), "a token id -7"),
        (broken(lambda choices: choices[0].update(token_ids=[10, 300, 2])), "300, .* ends at 300"),
        (broken(lambda choices: choices[0].update(token_ids=[10, 2**70, 2])), "more than 64 bits"),
        (broken(lambda choices: choices[0].update(token_ids=[10, True, 2])), "token_ids"),
        (with_logprobs([-1.0, 50.0, -1.0]), "a logprob of 50 "),
        (with_logprobs([-1.0, math.nan, -1.0]), "JSON is malformed"),
        (with_logprobs([-9999.0, -1.0, -1.0]), "a logprob of -9999 "),
        (json.dumps(completion(6, 6)).encode(), "6 tokens, 5 were requested"),
        (json.dumps(completion(0, 6)).encode(), "without a token"),
        (broken(lambda choices: choices[0].update(finish_reason="banana")), "'banana'"),
        (broken(lambda choices: choices[0].update(finish_reason=None)), "finish_reason"),
        (b'{"x":' + b"[" * 100_000, "recursion depth"),
    ],
)
def test_an_unusable_answer_says_what_is_wrong_with_it(payload, message):
    with pytest.raises(EngineError, match=message):
        wire.read_completion(payload, sampling=replace(SAMPLING, vocab_size=300))


def test_a_token_unknown_to_the_tokenizer_may_come_from_a_padded_embedding():
    payload = broken(lambda choices: choices[0].update(token_ids=[10, 299, 2]))
    read = wire.read_completion(payload, sampling=replace(SAMPLING, vocab_size=300))
    assert read.token_ids == (10, 299, 2)


def test_a_chat_completion_is_decoded_here_and_holds_the_servers_prompt():
    choice = {"token_ids": [10, 2], "finish_reason": "stop"}
    choice |= {"message": {"content": None, "reasoning": "x"}}
    choice |= {"logprobs": {"content": [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]}}
    answer = {"prompt_token_ids": [1, 9, 9], "choices": [choice]}

    response = wire.read_chat_completion(json.dumps(answer).encode(), str, sampling=SAMPLING)

    assert response.prompt_token_ids == (1, 9, 9)
    assert (response.token_ids, response.logprobs, response.text) == ((10, 2), (-1.0, -2.0), "(10, 2)")


def test_the_served_model_is_the_first_of_the_list():
    cards = [
        {"id": "m", "root": "/models/m", "max_model_len": 64},
        {"id": "adapter", "root": "a", "max_model_len": 1},
    ]

    assert wire.read_served_model(json.dumps({"data": cards}).encode()) == ServedModel("m", "/models/m", 64)


@pytest.mark.parametrize(("owner", "is_pool"), [("pool", True), ("vllm", False), (None, False)])
def test_a_pool_is_known_by_its_name_and_not_by_its_weight_version(owner, is_pool):
    card = {"id": "m", "root": "m", "max_model_len": 64, "weight_version": 3}
    cards = [card | ({"owned_by": owner} if owner else {})]
    assert wire.read_served_model(json.dumps({"data": cards}).encode()).is_pool is is_pool


BUSY = """# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 2.0
"""
NOT_WORKED_YET = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
"""


@pytest.mark.parametrize(("text", "pressure"), [(BUSY, (7, 2)), (NOT_WORKED_YET, (0, 0))])
def test_pressure_is_summed_over_data_parallel_engines(text, pressure):
    assert wire.read_pressure(text) == EnginePressure(*pressure)


def test_a_server_without_the_metrics_is_an_error_not_an_idle_engine():
    with pytest.raises(EngineError, match="num_requests_running"):
        wire.read_pressure("process_cpu_seconds_total 1.0\n")
