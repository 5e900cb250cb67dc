"""No number of the configuration is infinite, none, or more than a library can take."""

import math
import types
import typing

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from rl_agent.config.overrides.keys import sections_of, valid_keys
from rl_agent.config.plan import Config
from rl_agent.simulation.config import WhatIfConfig
from rl_agent.trainer.grpo.settings import TrainerSettings


def number_fields(section: type[BaseModel]):
    """(section, name, field) of every field that can be a number, sections inside included."""
    for name, field in section.model_fields.items():
        nested = sections_of(field.annotation)
        for inner in nested:
            yield from number_fields(inner)
        if not nested and numbers_in(field.annotation):
            yield section, name, field


def numbers_in(annotation):
    """The number types that a field may hold: itself, or as a choice, an element or a value."""
    arguments = typing.get_args(annotation)
    if annotation in (int, float):
        return {annotation}
    if typing.get_origin(annotation) in (types.UnionType, typing.Union, typing.Annotated, dict, tuple):
        return set().union(*(numbers_in(argument) for argument in arguments))
    return set()


FIELDS = {
    f"{section.__name__}.{name}": (section, name, field)
    for whole in (Config, WhatIfConfig, TrainerSettings)
    for section, name, field in number_fields(whole)
}


def refuses(section, name, value):
    """Return whether the field itself is what a section with this value fails for."""
    try:
        section.model_validate({name: value})
    except ValidationError as error:
        return any(problem["loc"][0] == name for problem in error.errors())
    return False


def shapes(field, value):
    """The value as the field would hold it."""
    origin = typing.get_origin(field.annotation)
    return {"a": value} if origin is dict else [value] if origin is tuple else value


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan], ids=str)
def test_no_field_takes_a_number_that_is_not_finite(value):
    assert len(FIELDS) > 150
    assert [key for key, (s, n, f) in FIELDS.items() if not refuses(s, n, shapes(f, value))] == []


def test_no_count_takes_more_than_32_bits():
    counts = {key: entry for key, entry in FIELDS.items() if numbers_in(entry[2].annotation) == {int}}
    assert len(counts) > 80
    assert [key for key, (s, n, f) in counts.items() if not refuses(s, n, shapes(f, 2**32))] == []


@pytest.mark.parametrize("key", [key for key in valid_keys() if key.endswith("_s")])
def test_no_wait_is_longer_than_a_system_call_takes(key):
    name = key.rpartition(".")[2]
    entries = [entry for full, entry in FIELDS.items() if full.endswith(f".{name}")]
    assert entries
    for section, field_name, field in entries:
        is_a_wait = not name.startswith(("rebalance_gain", "max_calls", "link_", "cap_"))
        assert refuses(section, field_name, shapes(field, 1e300)) == is_a_wait


def test_free_form_values_are_what_json_carries():
    adapter = TypeAdapter(Config.model_fields["engine"].annotation.model_fields["extra_args"].annotation)
    assert adapter.validate_python({"a": [1, None, {"b": 0.5}]})
    engine = Config.model_fields["engine"].annotation
    for value in (math.nan, math.inf, 2**70, {"a": [math.inf]}):
        assert refuses(engine, "extra_args", {"x": value})
