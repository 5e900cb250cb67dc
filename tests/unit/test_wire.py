import json

import pytest

from rl_agent.engine import wire
from rl_agent.engine.wire import EnginePressure, Sampling, ServedModel
from rl_agent.errors import EngineError
from tests.simulated_engine import completion

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


def test_a_completion_becomes_token_ids_with_a_logprob_each():
    response = wire.read_completion(json.dumps(completion(3, 3)).encode())

    assert response == wire.Response((18, 19, 2), (-0.5, -0.515625, -0.53125), "01", "stop")


def test_a_text_that_the_answer_leaves_out_is_made_of_all_tokens_but_the_one_that_ended_it():
    def without_text(tokens, wanted):
        answer = completion(tokens, wanted)
        answer["choices"][0]["text"] = ""
        return json.dumps(answer).encode()

    for tokens, wanted, said in ((3, 3, "18,19"), (3, 8, "18,19,20")):
        decode = lambda ids: ",".join(map(str, ids))  # noqa: E731
        assert wire.read_completion(without_text(tokens, wanted), decode).text == said
        assert (
            wire.read_completion(json.dumps(completion(tokens, wanted)).encode(), decode).text
            == ("0123456789"[: len(said.split(","))])
        )


def test_only_who_makes_the_text_says_that_none_is_needed():
    assert b"detokenize" not in wire.completion_request("m", [1, 2], SAMPLING, "r")
    body = json.loads(wire.completion_request("m", [1, 2], SAMPLING, "r", needs_text=False))
    assert body["detokenize"] is False


def broken(change):
    answer = completion(3, 3)
    change(answer["choices"])
    return json.dumps(answer).encode()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"<html>", "Invalid JSON"),
        (b"{}", "choices"),
        (broken(lambda choices: choices.clear()), "holds 0 responses"),
        (broken(lambda choices: choices[0].pop("token_ids")), "token_ids"),
        (broken(lambda choices: choices[0].update(logprobs=None)), "logprobs"),
        (
            broken(lambda choices: choices[0]["logprobs"]["token_logprobs"].pop()),
            "3 token ids with 2 logprobs",
        ),
        (broken(lambda choices: choices[0]["logprobs"].update(token_logprobs=[None] * 3)), "token_logprobs"),
    ],
)
def test_an_unusable_answer_says_what_is_wrong_with_it(payload, message):
    with pytest.raises(EngineError, match=message):
        wire.read_completion(payload)


def test_a_chat_completion_is_decoded_here_and_holds_the_servers_prompt():
    answer = {
        "prompt_token_ids": [1, 9, 9],
        "choices": [
            {
                "token_ids": [10, 2],
                "message": {"content": None, "reasoning": "x"},
                "logprobs": {"content": [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]},
                "finish_reason": "stop",
            }
        ],
    }

    response = wire.read_chat_completion(json.dumps(answer).encode(), decode=str)

    assert response.prompt_token_ids == (1, 9, 9)
    assert (response.token_ids, response.logprobs, response.text) == ((10, 2), (-1.0, -2.0), "(10, 2)")


def test_the_served_model_is_the_first_of_the_list():
    cards = [
        {"id": "m", "root": "/models/m", "max_model_len": 64},
        {"id": "adapter", "root": "a", "max_model_len": 1},
    ]

    assert wire.read_served_model(json.dumps({"data": cards}).encode()) == ServedModel("m", "/models/m", 64)


def test_pressure_is_summed_over_data_parallel_engines():
    text = """# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 2.0
"""
    assert wire.read_pressure(text) == EnginePressure(running=7, waiting=2)


def test_data_parallel_ranks_that_have_not_worked_yet_are_an_idle_engine():
    text = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
"""
    assert wire.read_pressure(text) == EnginePressure(running=0, waiting=0)


def test_a_server_without_the_metrics_is_an_error_rather_than_an_idle_engine():
    with pytest.raises(EngineError, match="num_requests_running"):
        wire.read_pressure("process_cpu_seconds_total 1.0\n")
