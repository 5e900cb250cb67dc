"""Keys that exist, and the key that a typo means."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from rl_agent.config.overrides.keys import (
    did_you_mean,
    group_options,
    hint,
    is_free_form,
    kinds_of,
    put,
    valid_keys,
)
from rl_agent.config.sections.base import Section
from rl_agent.paths import CONFIG_DIR


class Inner(Section):
    port: int
    extra: dict[str, int]


class Fast(Section):
    kind: Literal["fast"]
    speed: int


class Careful(Section):
    kind: Literal["careful"]
    patience: int


class Whole(Section):
    inner: Inner
    maybe: Inner | None
    chosen: Annotated[Fast | Careful, Field(discriminator="kind")]


def test_every_key_is_listed_once_with_sections_and_the_kinds_of_a_choice():
    assert valid_keys(Whole) == [
        *("inner", "inner.port", "inner.extra"),
        *("maybe", "maybe.port", "maybe.extra"),
        *("chosen", "chosen.kind", "chosen.speed", "chosen.patience"),
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("inner.prot", "did you mean inner.port?"),
        ("port", "did you mean inner.port?"),
        ("patience", "did you mean chosen.patience?"),
        ("somewhere.speeed", "did you mean chosen.speed?"),
        ("zzz", f"{CONFIG_DIR} has the keys"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_key(typed, meant):
    assert hint(typed, model=Whole) == meant


def test_of_a_choice_only_keys_of_the_chosen_kind_are_suggested():
    assert hint("chosen.patienc", "careful", model=Whole) == "did you mean chosen.patience?"
    assert "patience" not in hint("chosen.patienc", "fast", model=Whole)


def test_kinds_are_found_by_their_discriminator():
    assert kinds_of("chosen", Whole) == {"fast": Fast, "careful": Careful}
    assert kinds_of("inner", Whole) == {}


def test_any_name_is_right_inside_a_section_that_takes_any():
    assert is_free_form("inner.extra.anything", Whole)
    assert not is_free_form("inner.extra", Whole)
    assert not is_free_form("inner.port", Whole)


def test_near_choices_are_suggested_and_far_ones_not():
    assert did_you_mean("qwen3-thnk", ["qwen3-think", "other"]) == "; did you mean qwen3-think?"
    assert did_you_mean("zzz", ["qwen3-think", "other"]) == ""


def test_options_of_a_group_are_its_files_whatever_package_they_go_to():
    assert {"cpu", "gpu"} <= set(group_options("engine"))
    assert group_options("engine@engine") == group_options("engine")


def test_a_value_is_put_at_its_place():
    values = {"a": {"b": {"c": 1}}}
    put(values, ["a", "b", "c"], 2)
    assert values == {"a": {"b": {"c": 2}}}
