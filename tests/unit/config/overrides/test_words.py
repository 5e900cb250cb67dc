"""A `key=value` word, its request, and the value that it stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.config.overrides.words import Text, parse_override, read_value, reject_duplicates
from rl_agent.errors import UsageError

VALUES = {
    "3": 3,
    "1e-6": 1e-6,
    "true": True,
    "null": None,
    "[1,2]": [1, 2],
    "{easy:5,medium:6}": {"easy": 5, "medium": 6},
    "'quoted for Hydra'": "quoted for Hydra",
    "${seed}": "${seed}",
    "": "",
    "x;cmd": "x;cmd",
    "$(cmd)": "$(cmd)",
    "`cmd`": "`cmd`",
    "it's": "it's",
    'say "hi"': 'say "hi"',
    "  spaces  ": "  spaces  ",
    "é 日本 🙂": "é 日本 🙂",
    "two\nlines": "two\nlines",
    "a,b": "a,b",
    "a=b=c": "a=b=c",
    "back\\slash\\": "back\\slash\\",
    "{broken": "{broken",
    "range(1,3)": "range(1,3)",
    "~/x y": "~/x y",
}


@pytest.mark.parametrize("raw", VALUES)
def test_values_are_what_hydra_reads_or_the_text_as_typed(raw):
    assert read_value(raw) == VALUES[raw]
    is_text = isinstance(VALUES[raw], str) and "${" not in raw and not raw.startswith("'")
    assert isinstance(read_value(raw), Text) == is_text


@given(st.text(max_size=30))
def test_any_value_can_be_read(raw):
    read_value(raw)


@given(st.lists(st.sampled_from(["a=1", "+a=2", "~a", "b.c=1", "model=x", "model@model_config=y"])))
def test_duplicates_are_found_exactly_when_a_key_comes_twice(words):
    overrides = [parse_override(word, "test") for word in words]
    names = [override.name for override in overrides]
    if len(set(names)) == len(names):
        reject_duplicates(overrides)
    else:
        with pytest.raises(UsageError):
            reject_duplicates(overrides)
