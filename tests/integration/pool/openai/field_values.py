"""Requests that differ from a plain one in a single field: the values that a client may give each field.

`VALUES` holds a few values a field: some that ask for something, some of a wrong type, some out of range. A
value is sent alone, beside what it needs to have a meaning (`BESIDE`).
"""

from typing import Any

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
PLAIN: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": [20, 30, 40], "temperature": 0, "max_tokens": 6},
    CHATS: {
        "messages": [{"role": "user", "content": "What is 1 + 1?"}],
        "temperature": 0,
        "max_tokens": 6,
    },
}
USER = {"role": "user", "content": "What is 1 + 1?"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
WRONG_FLAGS = ("yes", 2, [])
FLAGS = (None, True, False, *WRONG_FLAGS)
WRONG_NUMBERS = ("x", [], True)
VALUES: dict[str, tuple[Any, ...]] = {
    "model": (None, "", "nothing", 3, []),
    "max_tokens": (None, 0, -1, 3, 1.5, "3", 10_000, 2**40, [], True),
    "max_completion_tokens": (None, 0, -1, 3, 1.5, "3", 10_000, [], True),
    "n": (None, 0, -1, 1, 2, 1.5, "2", 100_000, [], True),
    "stream": (None, False, *WRONG_FLAGS),
    "stream_options": (None, {}, [], "x", {"include_usage": True}, {"include_usage": 2}, {"other": 1}),
    "stream_interval": (None, 0, -1, 2, "x", 1.5, []),
    "request_id": (None, "mine", "", 3, "x" * 300, "ä b"),
    "session_id": (None, "mine", "", 3, "x" * 300, "a\nb"),
    "return_token_ids": FLAGS,
    "return_tokens_as_token_ids": FLAGS,
    "return_token_offsets": FLAGS,
    "user": (None, "me", "", 3, []),
    "temperature": (None, 0.0, 1e-9, -0.1, 2, 1e7, *WRONG_NUMBERS),
    "top_p": (None, 0.5, 1, 0, -0.5, 1.5, *WRONG_NUMBERS),
    "top_k": (None, -1, 0, 1, 5, -2, 1.5, 10**6, *WRONG_NUMBERS),
    "min_p": (None, 0, 0.5, 1, -0.5, 1.5, *WRONG_NUMBERS),
    "repetition_penalty": (None, 1.0, 1.5, 0.0, -1, 3, 1000, *WRONG_NUMBERS),
    "presence_penalty": (None, 0.0, 1.0, -2, 2.5, -3, *WRONG_NUMBERS),
    "frequency_penalty": (None, 0.0, 1.0, -2, 2.5, -3, *WRONG_NUMBERS),
    "seed": (None, 0, 3, -1, 2**63 - 1, 2**63, 1.5, *WRONG_NUMBERS),
    "logit_bias": (
        None,
        {},
        {"54": 5},
        {"54": 200},
        {"x": 1},
        {"100000": 1},
        {"-1": 1},
        {"54": "x"},
        [],
        "x",
    ),
    "stop": (None, [], "", "T", ["T"], ["T", "U"], [""], ["a"] * 5, 3, [3], {}),
    "include_stop_str_in_output": FLAGS,
    "stop_token_ids": (None, [], [54], [-1], [10**6], ["x"], "x", 3, [1.5]),
    "ignore_eos": FLAGS,
    "min_tokens": (None, 0, 3, 6, 7, -1, 1.5, "x", []),
    "allowed_token_ids": (None, [], [54, 55], [-1], [10**6], ["x"], "x", 3),
    "bad_words": (None, [], ["T"], [""], "T", [3], 3),
    "spaces_between_special_tokens": FLAGS,
    "skip_special_tokens": FLAGS,
    "thinking_token_budget": (None, 0, 5, -1, -2, "x", 1.5),
    "vllm_xargs": (None, {}, {"a": 1}, {"a": {}}, [], "x"),
    "cache_salt": (None, "salt", "", 3),
    "use_beam_search": FLAGS,
    "length_penalty": (None, 1.0, 0.5, "x"),
    "prompt_logprobs": (None, 0, 1, -1, -2, "x"),
    "logprob_token_ids": (None, [], [54], "x"),
    "repetition_detection": (None, {}, {"max_pattern_size": 3, "min_count": 2}, "x"),
    "kv_transfer_params": (None, {}, {"a": 1}, "x"),
    "ec_transfer_params": (None, {}, {"a": 1}, "x"),
    "routed_experts_prompt_start": (None, 0, 1, -1, "x"),
    "priority": (None, 0, 1, 2**63, "x"),
    "response_format": (
        *(None, {"type": "text"}, {"type": "json_object"}, {"type": "x"}, {}, [], "text"),
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    ),
    "structured_outputs": (
        *(None, {}, {"choice": ["A", "B"]}, {"regex": "[0-9]+"}, {"regex": "("}, {"json": SCHEMA}),
        *({"choice": []}, {"choice": ["A"], "regex": "B"}, {"x": 1}, [], "x"),
    ),
    "add_special_tokens": FLAGS,
    "echo": FLAGS,
    "truncate_prompt_tokens": (None, 0, 2, -1, -2, 1000, "x"),
    "truncation_side": (None, "left", "right", "x", 3),
    "suffix": (None, "", "b", 3),
    "prompt_embeds": (None, [], ["AAAA"], "AAAA", 3),
    "prompt": (
        *(None, "", [], [[]], "Hello", ["Hello"], ["a", "b"], [[20, 30]], [[20], [30]], [20, "x"], 3, {}),
        *([-1], [10**6], [2**40], [1.5], [True], "a\x00b", [20] * 300),
    ),
    "messages": (
        *(None, [], "x", {}, [None], ["x"], [{}], [{"role": "user"}], [{"content": "x"}]),
        *([USER, USER], [{"role": "other", "content": "x"}], [{"role": 3, "content": "x"}]),
        [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]}],
        *([{"role": "user", "content": None}], [{"role": "user", "content": 3}]),
        [USER, {"role": "assistant", "content": "Two", "tool_calls": []}, USER],
    ),
    "tool_choice": (
        *(None, "none", "auto", "required", "x", 3, [], {}),
        {"type": "function", "function": {"name": "add"}},
        {"type": "function", "function": {"name": "other"}},
    ),
    "tools": (None, [], [TOOL], [{}], ["x"], "x", {}, [{"type": "function"}]),
    "parallel_tool_calls": FLAGS,
    "top_logprobs": (None, 0, 1, -1, -2, "x"),
    "reasoning_effort": (None, "none", "low", "high", "x", 3),
    "include_reasoning": FLAGS,
    "add_generation_prompt": FLAGS,
    "continue_final_message": FLAGS,
    "documents": (None, [], [{"title": "a", "text": "b"}], "x", [3]),
    "chat_template": (None, "", "{{ messages[0].content }}", "{{", 3),
    "chat_template_kwargs": (None, {}, {"enable_thinking": False}, {"a": {}}, [], "x"),
    "media_io_kwargs": (None, {}, {"image": {}}, "x"),
    "mm_processor_kwargs": (None, {}, {"a": 1}, "x"),
    "return_prompt_text": FLAGS,
    "return_assistant_tokens_mask": FLAGS,
    "unknown_field": (None, 3, "x", {}),
}
OF_AN_ENDPOINT: dict[str, dict[str, tuple[Any, ...]]] = {
    COMPLETIONS: {"logprobs": (None, 0, 1, 5, -1, 1.5, "x", True, [])},
    CHATS: {"logprobs": FLAGS},
}
BESIDE: dict[str, tuple[dict[str, Any], ...]] = {
    "tool_choice": ({}, {"tools": [TOOL]}),
    "tools": ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}),
    "stream_options": ({}, {"stream": True}),
    "stream_interval": ({}, {"stream": True}),
    "continue_final_message": ({}, {"add_generation_prompt": False}),
    "return_tokens_as_token_ids": ({}, {"logprobs": True}),
    "top_logprobs": ({}, {"logprobs": True}),
    "include_stop_str_in_output": ({}, {"stop": ["T"], "max_tokens": 30}),
    "min_tokens": ({}, {"stop_token_ids": [54], "max_tokens": 30}),
    "skip_special_tokens": ({}, {"logit_bias": {"0": 100}}),
    "n": ({}, {"temperature": 1.0, "seed": 3}),
    "seed": ({"temperature": 1.0},),
}


def cases(path: str, fields: set[str]) -> list[tuple[str, Any, dict[str, Any]]]:
    """The name and the value of a field, and the whole request, for all of these fields that have values."""
    found = []
    for name, values in (VALUES | OF_AN_ENDPOINT[path]).items():
        if name not in fields and name != "unknown_field":
            continue
        for beside in BESIDE.get(name, ({},)):
            if path == COMPLETIONS and beside == {"logprobs": True}:
                beside = {"logprobs": 0}
            found += [(name, value, PLAIN[path] | beside | {name: value}) for value in values]
    return found
