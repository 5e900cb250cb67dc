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


def sections_of(annotation: object) -> list[type[BaseModel]]:
    """The models behind a field's type, seen through `Annotated`, `X | None` and a choice of kinds."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    if typing.get_origin(annotation) in (types.UnionType, typing.Union, typing.Annotated):
        return [section for argument in typing.get_args(annotation) for section in sections_of(argument)]
    return []


@functools.cache
def valid_keys(section: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """Every dotted key of the configuration, sections included."""
    keys = []
    for name, field in section.model_fields.items():
        key = prefix + (field.alias or name)
        keys.append(key)
        for nested in sections_of(field.annotation):
            keys += valid_keys(nested, key + ".")
    return list(dict.fromkeys(keys))


EXPERIMENT = "experiment"
GROUPS = ("engine", "trainer", "weights", "rollout", "cluster", "pool", *GROUP_KEYS.values(), EXPERIMENT)
"""Config groups by the name Hydra knows them by: `group` or `group@package`."""


def is_group(name: str) -> bool:
    return name in GROUPS


def group_options(name: str) -> list[str]:
    """Names of the files of a config group, e.g. `cpu` and `gpu` for `engine`."""
    return sorted(path.stem for path in (CONFIG_DIR / name.partition("@")[0]).glob("*.yaml"))


def kinds_of(section: str) -> dict[str, type[BaseModel]]:
    """The models that a section is a choice of, by the value of their `kind`; empty for any other section."""
    field = Config.model_fields.get(section)
    kinds = sections_of(field.annotation) if field is not None and field.discriminator else []
    return {typing.get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in kinds}


def hint(key: str, kind: str | None = None) -> str:
    """`did you mean engine.port?`, or where to look the keys up; of a choice, keys of that kind."""
    section = key.partition(".")[0]
    keys = valid_keys(kinds_of(section)[kind], section + ".") if kind else valid_keys()
    same_end = [known for known in keys if "." not in key and known.endswith("." + key)]
    near = sorted(same_end, key=lambda known: known.count("."))[:1]
    near = near or difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
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
        nested = sections_of(field.annotation)
        for section_of_key in nested:
            found |= _free_form_keys(section_of_key, key + ".")
        if not nested and typing.get_origin(field.annotation) is dict:
            found.add(key)
    return found
