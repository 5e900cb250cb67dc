"""Knows which configuration keys exist, from the pydantic models, and the nearest one to a typo."""

import difflib
import functools
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rl_agent.config.overrides.elsewhere import name_here, why_none
from rl_agent.config.overrides.words import GROUP_KEYS
from rl_agent.config.plan import Config
from rl_agent.paths import CONFIG_DIR


def sections_of(annotation: object) -> list[type[BaseModel]]:
    """Return the models behind a field's type, seen through `Annotated`, `X | None` and a choice of kinds."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    if typing.get_origin(annotation) in (types.UnionType, typing.Union, typing.Annotated):
        return [section for argument in typing.get_args(annotation) for section in sections_of(argument)]
    return []


def _fields(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo, list[type[BaseModel]]]]:
    """The dotted key of each field, the field, and the models of the section that it may hold."""
    for name, field in section.model_fields.items():
        yield prefix + (field.alias or name), field, sections_of(field.annotation)


@functools.cache
def valid_keys(section: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """Return every dotted key of the configuration, sections included."""
    keys = []
    for key, _, nested in _fields(section, prefix):
        keys += [key, *(inside for inner in nested for inside in valid_keys(inner, key + "."))]
    return list(dict.fromkeys(keys))


EXPERIMENT = "experiment"
GROUPS = (
    "context",
    "engine",
    "trainer",
    "trainer/recipe",
    "weights",
    "rollout",
    "cluster",
    "pool",
    *GROUP_KEYS.values(),
    EXPERIMENT,
)
"""Config groups by the name Hydra knows them by: `group` or `group@package`."""


def group_options(name: str) -> list[str]:
    """Return the names of the files of a config group, e.g. `cpu` and `gpu` for `engine`."""
    return sorted(path.stem for path in (CONFIG_DIR / name.partition("@")[0]).glob("*.yaml"))


def kinds_of(section: str, model: type[BaseModel] = Config) -> dict[str, type[BaseModel]]:
    """The models that a section is a choice of, by the value of their `kind`; empty for any other section."""
    field = model.model_fields.get(section)
    kinds = sections_of(field.annotation) if field is not None and field.discriminator else []
    return {typing.get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in kinds}


@functools.cache
def _owners(model: type[BaseModel]) -> dict[str, list[str]]:
    """Return the keys of the section `trainer`, each with the kinds of trainer that have it."""
    owners: dict[str, list[str]] = {}
    for kind, section in kinds_of("trainer", model).items():
        for key in valid_keys(section, "trainer."):
            owners.setdefault(key, []).append(kind)
    return owners


def hint(
    key: str, kind: str | None = None, *, model: type[BaseModel] = Config, trainer: str | None = None
) -> str:
    """Return `did you mean engine.port?`, or where to look the keys up; of a choice, those of its kind.

    With the kind of the run's trainer, a key of another one is named with that, or not at all.
    """
    owner = _owners(model)
    of_others = {name for name, kinds in owner.items() if trainer and trainer not in kinds}
    if trainer in owner.get(f"trainer.{key}", ()):
        return f"did you mean trainer.{key}?"
    if model is Config and (here := name_here(key) or name_here(key.removeprefix("trainer."))) is not None:
        return f"that is {here} here{f', with trainer={owner[here][0]}' if here in of_others else ''}"
    if model is Config and (reason := why_none(key)) is not None:
        return reason
    group = f"trainer/{key.rpartition('.')[2]}"
    if model is Config and group in GROUPS:
        return f"did you mean {group}?"
    section = key.partition(".")[0]
    keys = valid_keys(kinds_of(section, model)[kind], section + ".") if kind else valid_keys(model)
    keys = [valid_key for valid_key in keys if valid_key not in of_others]
    same_end = [valid_key for valid_key in keys if "." not in key and valid_key.endswith("." + key)]
    near = sorted(same_end, key=lambda valid_key: valid_key.count("."))[:1]
    near = near or difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    if not near:
        by_last_part = {valid_key.rpartition(".")[2]: valid_key for valid_key in keys}
        last = difflib.get_close_matches(key.rpartition(".")[2], list(by_last_part), n=1, cutoff=0.7)
        near = [by_last_part[name] for name in last]
    return f"did you mean {near[0]}?" if near else f"{CONFIG_DIR} has the keys"


def did_you_mean(word: str, choices: Sequence[str]) -> str:
    """Return `; did you mean qwen3-think?` where one of `choices` is near, else nothing."""
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


@functools.cache
def _free_form_keys(section: type[BaseModel], prefix: str = "") -> set[str]:
    names = set()
    for key, field, nested in _fields(section, prefix):
        for inner in nested:
            names |= _free_form_keys(inner, key + ".")
        if not nested and typing.get_origin(field.annotation) is dict:
            names.add(key)
    return names


def is_free_form(key: str, model: type[BaseModel] = Config) -> bool:
    """Return whether `key` lies inside a section that takes any name (`engine.extra_args`, ...)."""
    return any(key.startswith(section + ".") for section in _free_form_keys(model))


def put(values: Any, place: Sequence[str], value: Any) -> None:
    """Set the key at `place`, whose sections are there."""
    for name in place[:-1]:
        values = values[name]
    values[place[-1]] = value
