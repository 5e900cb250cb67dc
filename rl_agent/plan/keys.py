"""Which configuration keys exist, read from the pydantic models; the nearest one to a typo."""

import difflib
import functools
import types
import typing
from collections.abc import Sequence

from pydantic import BaseModel

from rl_agent.config import Config
from rl_agent.paths import CONFIG_DIR
from rl_agent.plan.overrides import GROUP_KEYS


def section_of(annotation: object) -> type[BaseModel] | None:
    """The model behind a field's type, seen through `Annotated` and `X | None`."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    if typing.get_origin(annotation) in (types.UnionType, typing.Union, typing.Annotated):
        found = (section_of(argument) for argument in typing.get_args(annotation))
        return next((section for section in found if section), None)
    return None


@functools.cache
def valid_keys(section: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """Every dotted key of the configuration, sections included."""
    keys = []
    for name, field in section.model_fields.items():
        key = prefix + (field.alias or name)
        keys.append(key)
        nested = section_of(field.annotation)
        if nested:
            keys += valid_keys(nested, key + ".")
    return keys


EXPERIMENT = "experiment"
GROUPS = ("engine", "trainer", "rollout", "cluster", *GROUP_KEYS.values(), EXPERIMENT)
"""Config groups by the name Hydra knows them by: `group` or `group@package`."""


def is_group(name: str) -> bool:
    return name in GROUPS


def group_options(name: str) -> list[str]:
    """Names of the files of a config group, e.g. `cpu` and `gpu` for `engine`."""
    return sorted(path.stem for path in (CONFIG_DIR / name.partition("@")[0]).glob("*.yaml"))


def hint(key: str) -> str:
    """`did you mean engine.port?`, or where to look the keys up."""
    keys = valid_keys()
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    if not near:
        by_last_part = {known.rpartition(".")[2]: known for known in keys}
        last = difflib.get_close_matches(key.rpartition(".")[2], list(by_last_part), n=1, cutoff=0.7)
        near = [by_last_part[name] for name in last]
    return f"did you mean {near[0]}?" if near else "docs/reference/configuration.md lists the keys"


def did_you_mean(found: str, choices: Sequence[str]) -> str:
    """`; did you mean qwen3-think?` where one of `choices` is near, else nothing."""
    near = difflib.get_close_matches(found, choices, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def is_free_form(key: str) -> bool:
    """Whether `key` lies inside a section that takes any name (`engine.extra_args`, ...)."""
    return any(key.startswith(known + ".") for known in _free_form_keys())


@functools.cache
def _free_form_keys(section: type[BaseModel] = Config, prefix: str = "") -> set[str]:
    found = set()
    for name, field in section.model_fields.items():
        key = prefix + (field.alias or name)
        nested = section_of(field.annotation)
        if nested:
            found |= _free_form_keys(nested, key + ".")
        elif typing.get_origin(field.annotation) is dict:
            found.add(key)
    return found
