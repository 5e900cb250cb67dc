"""Requests of the OpenAI API are read as vLLM reads them, or refused by name."""

import pytest

from tests.unit.pool.api.asking import MESSAGES, asked, refused


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logprobs": 2}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"is_chat": True, "logprobs": 1}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage"),
        ({"stream": True, "n": 2}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"is_chat": True, "tool_choice": "required"}, "tool_choice"),
        ({"is_chat": True, "tool_choice": {"function": {"name": "f"}}}, "tool_choice"),
        ({"is_chat": True, "tool_choice": None}, "tool_choice"),
        ({"model": 3}, "model"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"return_token_offsets": 2}, "return_token_offsets"),
        ({"user": 3}, "user"),
        ({"n": None}, "n"),
        ({"ignore_eos": None}, "ignore_eos"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"response_format": "json"}, "response_format"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_by_name(body, param):
    assert refused(**body)["param"] == param


def test_two_greedy_responses_are_refused_as_by_vllm():
    assert refused(n=2, temperature=0)["message"] == "n must be 1 when using greedy sampling, got 2."
    assert asked(n=2, temperature=0.5).n == 2


def test_a_chat_has_no_length_of_its_own_and_a_completion_has_openais():
    assert asked(is_chat=True).wanted_tokens is None and asked().wanted_tokens == 16
    assert asked(is_chat=True, max_tokens=5).wanted_tokens == 5
    assert asked(is_chat=True, max_tokens=5, max_completion_tokens=7).wanted_tokens == 7


def test_an_answer_goes_on_in_the_role_of_the_message_that_it_continues():
    said = [*MESSAGES, {"role": "assistant", "content": "It"}]
    assert asked(is_chat=True).role == asked(is_chat=True, messages=said, add_generation_prompt=True).role
    assert asked(is_chat=True, add_generation_prompt=False).role == "user"
    assert asked(is_chat=True, messages=said, add_generation_prompt=False).role == "assistant"
