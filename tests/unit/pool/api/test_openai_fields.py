"""What becomes of each field of a request to `/v1`: honoured, or refused in words, in vLLM's form."""

import pytest

from rl_agent.pool.api.openai_fields import CHAT, COMPLETION, NEVER_NULL, OWN
from tests.unit.pool.api.asking import asked, refused

OTHER = {
    "prompt_logprobs": 1,
    "logprob_token_ids": [1],
    "repetition_detection": {"max_pattern_size": 3},
    "kv_transfer_params": {"a": 1},
    "ec_transfer_params": {"a": 1},
    "suffix": "b",
    "prompt_embeds": ["AAAA"],
    "truncate_prompt_tokens": 5,
    "truncation_side": "left",
    "structured_outputs": {"json": {}},
    "response_format": {"type": "json_object"},
    "length_penalty": 0.5,
    "priority": 1,
    "top_logprobs": 2,
    "routed_experts_prompt_start": 3,
}
"""Values that ask for something, where it is not just the other of two."""
FORMATS = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
SAMPLING = FORMATS | {"top_p": 0.5, "min_p": 0.1, "logit_bias": {"7": 1.0}, "ignore_eos": True}
OTHER_THAN = {list: [7], bool: False}
"""Values of engines' fields that are not their defaults, by name or by the type of the default."""
REFUSED = [
    (is_chat, name)
    for is_chat, table in ((False, COMPLETION), (True, CHAT))
    for name, field in table.items()
    if field.how == "refused"
]


@pytest.mark.parametrize(("is_chat", "name"), REFUSED)
def test_a_field_that_is_refused_is_named_and_its_default_asks_for_nothing(is_chat, name):
    table = CHAT if is_chat else COMPLETION
    value = OTHER.get(name, not table[name].default)
    error = refused(is_chat=is_chat, **{name: value})
    assert error["param"] == name and error["message"].startswith(f"{name}=")
    nothing = set() if not is_chat and name in NEVER_NULL else {None}
    for harmless in (*nothing, table[name].default):
        assert name not in asked(is_chat=is_chat, **{name: harmless}).params


@pytest.mark.parametrize("is_chat", [False, True])
def test_engines_get_every_field_that_is_theirs_unless_it_states_the_default(is_chat):
    table = CHAT if is_chat else COMPLETION
    theirs = {name: field for name, field in table.items() if field.how == "engine"}
    stated = asked(is_chat=is_chat, **{name: field.default for name, field in theirs.items()})
    assert stated.params == {"skip_special_tokens": True}
    others = {
        name: SAMPLING.get(name, OTHER_THAN.get(type(field.default), 3)) for name, field in theirs.items()
    }
    found = asked(is_chat=is_chat, **others).params
    assert others.items() <= found.items()


def test_engines_get_no_field_of_the_pool_or_of_a_prompt():
    body = {"n": 2, "user": "me", "model": "m", "return_token_ids": True, "logprobs": 0, "request_id": "r"}
    own = {"timeout_s": 3.0, "group": "g", "episode": "e", "vocab_size": 9, "detokenize": False}
    assert asked(**body, **own, min_weight_version=2).params == {"skip_special_tokens": True}
    chat = {"tools": [{}], "chat_template_kwargs": {}, "reasoning_effort": "low", "documents": []}
    chat |= {"continue_final_message": True, "add_generation_prompt": False, "tool_choice": "auto"}
    assert asked(is_chat=True, **chat).params == {"skip_special_tokens": True}
    assert asked(eos_token_ids=[2], something_new=1).params.keys() >= {"eos_token_ids", "something_new"}
    assert not set(OWN) & (set(COMPLETION) | set(CHAT))
