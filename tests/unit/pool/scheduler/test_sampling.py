"""Sampling parameters that a pool takes; `test_migration` draws any others at random."""

import pytest

from rl_agent.pool.scheduler.sampling import MAX_DEPTH, MAX_NAMES, MAX_VALUES, check_sampling


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "seed": -1},
        {"temperature": -1, "top_p": "high"},
        {"stop": "\n"},
        {"stop": ["a", "b"], "min_tokens": 0},
        {"bad_words": ["x"], "guided_regex": "a+"},
        {"structured_outputs": {"json": {"type": "object"}}},
        {"other": nested(MAX_DEPTH - 1)},
        {"other": [0] * (MAX_VALUES - 1)},
    ],
)
def test_what_an_engine_may_be_asked_is_taken(params):
    check_sampling(params)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"seed": 2**63}, "seed: "),
        ({"min_tokens": "3"}, "min_tokens: "),
        ({"echo": True}, "echo: the pool decides this, or does not do it; leave it out"),
        ({"stop": ""}, "stop: "),
        ({"stop": ["a"] * (MAX_NAMES + 1)}, "stop: "),
        ({"response_format": "json"}, "response_format: expected an object"),
        ({"structured_outputs": [1]}, "structured_outputs: expected an object"),
        ({f"p{n}": 1 for n in range(MAX_NAMES + 1)}, f"{MAX_NAMES + 1} parameters; at most {MAX_NAMES}"),
        ({"other": nested(MAX_DEPTH)}, f"other: nested more than {MAX_DEPTH} deep"),
        ({"other": [0] * MAX_VALUES}, f"other: more than {MAX_VALUES} values"),
    ],
)
def test_what_no_engine_should_see_is_refused_by_name(params, words):
    with pytest.raises(ValueError) as refused:
        check_sampling(params)
    assert str(refused.value).startswith(words)
