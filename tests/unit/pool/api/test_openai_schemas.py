"""Requests of the OpenAI API are read as vLLM reads them, or refused by name."""

import pytest

from tests.unit.pool.api.asking import MESSAGES, call_of, refused


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logprobs": 2}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"is_chat": True, "logprobs": 1}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "n": 2}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"is_chat": True, "tool_choice": "any"}, "tool_choice"),
        ({"model": 3}, "model"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [[1], "a", 2]}, "prompt"),
        ({"prompt": ["a", "b"], "stream": True}, "prompt"),
        ({"is_chat": True, "messages": []}, "messages"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"structured_outputs": [1]}, "structured_outputs"),
        ({"response_format": "json"}, "response_format"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_by_name(body, param):
    assert refused(**body)["param"] == param


def test_engines_get_every_field_that_the_pool_does_not_read():
    own = {"n": 2, "timeout_s": 3.0, "group": "g", "vocab_size": 9, "detokenize": False, "logprobs": 0}
    ignored = {"user": "me", "best_of": 1, "echo": False, "response_format": {"type": "text"}}
    theirs = {"temperature": -1, "stop": ["a"], "bad_words": "b", "something_new": {"x": 1}}
    assert call_of(**own, **ignored, **theirs, top_p=None).params == theirs
    rendered = {"tools": [{}], "chat_template_kwargs": {}, "tool_choice": "auto", "documents": []}
    assert call_of(is_chat=True, **rendered, **theirs).params == theirs


@pytest.mark.parametrize(
    ("given", "prompts"),
    [("a", ("a",)), ([1, 2], ((1, 2),)), (["a", "b"], ("a", "b")), ([[1, 2], [3]], ((1, 2), (3,)))],
    ids=str,
)
def test_a_completion_has_one_prompt_or_several(given, prompts):
    assert call_of(prompt=given).prompt == prompts


def test_a_chat_has_no_length_of_its_own_and_a_completion_has_openais():
    assert call_of(is_chat=True).wanted_tokens is None and call_of().wanted_tokens == 16
    assert call_of(is_chat=True, max_tokens=5).wanted_tokens == 5
    assert call_of(is_chat=True, max_tokens=5, max_completion_tokens=7).wanted_tokens == 7


def test_an_answer_goes_on_in_the_role_of_the_message_that_it_continues():
    begun = {"is_chat": True, "messages": [*MESSAGES, {"role": "assistant", "content": "It"}]}
    assert call_of(is_chat=True).role == call_of(**begun, add_generation_prompt=True).role
    assert call_of(is_chat=True, add_generation_prompt=False).role == "user"
    assert call_of(**begun, add_generation_prompt=False).role == "assistant"
