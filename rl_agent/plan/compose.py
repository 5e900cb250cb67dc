"""Hydra composes the configuration, pydantic checks it. The only place that does either.

Values that Hydra must not read (`overrides.Text`) go in as markers and are put in place afterwards, also
where another key interpolates them, so no character of theirs is ever quoted, unquoted or expanded.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rl_agent.config import Config
from rl_agent.errors import ConfigError, UsageError
from rl_agent.paths import CONFIG_DIR
from rl_agent.plan import caller, inert, keys
from rl_agent.plan.overrides import GROUP_KEYS, Kind, Override, Text, read_value
from rl_agent.terminal import one_line

_MOST_SHOWN = 500
"""Characters of a value in a message."""
MODEL_GROUP = GROUP_KEYS["model"]
_MODEL_TYPE = "model_config.model_type"


@dataclass(frozen=True, slots=True)
class Composed:
    """A checked configuration and what was decided on the user's behalf."""

    config: Config
    notes: tuple[str, ...]


def compose_config(
    overrides: Sequence[Override], *, data_path: Path, log_path: Path, num_gpus: int
) -> Composed:
    """Raises `UsageError` for a word that cannot be applied, `ConfigError` for a value that does not fit."""
    paths = [_path_override("data_path", data_path), _path_override("log_path", log_path)]
    words = [*_model_group(overrides), *overrides, *paths]
    values, choices = _compose(words)
    defaults = _cpu_defaults(choices, {override.name for override in overrides}, num_gpus)
    if defaults:
        values, _ = _compose([*defaults, *words])
    if values["run_name"] is None:
        values["run_name"] = log_path.name
    config = caller.from_folder(_validate(values, overrides), Path.cwd())
    chosen = (f"no GPU is visible: {' '.join(o.word for o in defaults)}",) if defaults else ()
    return Composed(config, (*chosen, *inert.notes(config, {override.name for override in overrides})))


def _path_override(key: str, path: Path) -> Override:
    return Override(Kind.SET, key, str(path), f"{key}={path}", "--" + key.replace("_", "-"))


def _group(name: str, option: str) -> Override:
    return Override(Kind.SET, name, option, f"{name}={option}", "default")


def _model_group(overrides: Iterable[Override]) -> list[Override]:
    """`model_config.model_type=X` alone also takes the base model, template, ... that belong to X."""
    by_name = {override.name: override for override in overrides}
    chosen = by_name.get(_MODEL_TYPE)
    if chosen is None or MODEL_GROUP in by_name or chosen.raw not in keys.group_options("model"):
        return []
    return [_group(MODEL_GROUP, chosen.raw)]


def _cpu_defaults(choices: dict[str, str], chosen: set[str], num_gpus: int) -> list[Override]:
    """Groups taken where there is no GPU and neither the user nor an experiment chose others."""
    if num_gpus:
        return []
    wanted = {"engine": ("gpu", "cpu"), "trainer": ("llamafactory", "llamafactory_cpu")}
    return [
        _group(group, on_cpu)
        for group, (on_gpu, on_cpu) in wanted.items()
        if group not in chosen and choices[group] == on_gpu
    ]


def _compose(words: Sequence[Override]) -> tuple[dict[str, Any], dict[str, str]]:
    """The plain configuration and the option chosen for each config group."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    for word in words:
        _check_key(word)
    texts: list[Any] = []
    lines = [_to_hydra(override, texts) for override in words]
    try:
        values, choices = _hydra(tuple(lines))
    except (HydraException, OmegaConfBaseException) as error:
        raise _explain(error, words) from error
    return _put_texts(values, texts), choices


@functools.lru_cache(maxsize=64)
def _hydra(lines: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    """What Hydra makes of the words; kept: it takes a tenth of a second, and no path is among them."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        composed = compose("config", overrides=list(lines), return_hydra_config=True)
    choices = dict(composed.hydra.runtime.choices)
    OmegaConf.set_struct(composed, False)
    del composed["hydra"]
    values: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    return values, choices


def _to_hydra(override: Override, texts: list[Any]) -> str:
    """The word for Hydra; a value it must not read is kept in `texts` and named by a marker."""
    if override.kind is Kind.DELETE:
        return f"~{override.name}"
    if keys.is_group(override.name) and not override.raw.startswith("{"):
        return f"{override.kind.value}{override.name}={override.raw}"
    is_path = override.key in ("data_path", "log_path")
    value = Text(override.raw) if is_path else read_value(override.raw)
    # The key was checked, so it may be set whether or not a file mentions it.
    prefix = f"{Kind.FORCE.value}{override.name}="
    if not isinstance(value, Text | list) or ("${" in override.raw and isinstance(value, list)):
        return prefix + override.raw
    texts.append(str(value) if isinstance(value, Text) else value)
    return prefix + _marker(len(texts) - 1)


def _check_key(word: Override) -> None:
    """Raises `ConfigError` if the key, or the option of a config group, does not exist."""
    if keys.is_group(word.name):
        options = keys.group_options(word.name)
        if word.kind is not Kind.DELETE and not word.raw.startswith("{") and word.raw not in options:
            nearest = keys.did_you_mean(word.raw, options)
            raise ConfigError(f"{word.shown}: {word.key} is one of {', '.join(options)}{nearest}")
        if word.name == keys.EXPERIMENT and word.kind is Kind.SET:
            raise UsageError(f"{word.shown}: an experiment is added with +{word.shown}")
        return
    is_declared = word.name in keys.valid_keys()
    if not is_declared and not keys.is_free_form(word.name):
        raise ConfigError(f"{word.shown}: there is no key {word.name}; {keys.hint(word.name)}")
    if is_declared and word.kind is Kind.DELETE:
        raise ConfigError(f"{word.shown}: a key cannot be deleted; set it, to null where that is allowed")


def _marker(index: int) -> str:
    return f"__text_{index}_of_the_command_line__"


def _put_texts(value: Any, texts: Sequence[Any]) -> Any:
    if isinstance(value, dict):
        return {key: _put_texts(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_put_texts(item, texts) for item in value]
    if isinstance(value, str):
        for index, text in enumerate(texts):
            if value == _marker(index):
                return text
            value = value.replace(_marker(index), str(text))
    return value


def _explain(error: Exception, words: Sequence[Override]) -> ConfigError:
    """One line about the word that Hydra stumbled over."""
    reason = one_line(" ".join(str(error).split()))
    named = next((word.shown for word in words if word.name in reason), "configuration")
    return ConfigError(f"{named}: {reason}")


def _validate(values: dict[str, Any], overrides: Sequence[Override]) -> Config:
    raw = {override.name: override.raw for override in overrides if override.kind is not Kind.DELETE}
    try:
        return Config.model_validate(_retype_strings(values, raw))
    except ValidationError as error:
        raise ConfigError(_first_problem(error, raw)) from error


def _retype_strings(values: dict[str, Any], raw: dict[str, str]) -> dict[str, Any]:
    """Where a key is a string, `run_name=007` means the text 007, not the number 7."""
    try:
        Config.model_validate(values)
    except ValidationError as error:
        for problem in error.errors():
            place, _ = _place_of(problem["loc"])
            key = ".".join(place)
            found = problem["input"]
            if problem["type"] == "string_type" and isinstance(found, bool | int | float) and key in raw:
                *sections, last = place
                target: Any = values
                for name in sections:
                    target = target[name]
                target[last] = str(found) if "${" in raw[key] else raw[key]
    return values


def _place_of(loc: tuple[int | str, ...]) -> tuple[list[str], str | None]:
    """The names of a key, and the kind that pydantic puts among them where a section is a choice."""
    names = [str(part) for part in loc]
    if len(names) > 1 and names[1] in keys.kinds_of(names[0]):
        return [names[0], *names[2:]], names[1]
    return names, None


def _first_problem(error: ValidationError, raw: dict[str, str]) -> str:
    """`key=value: expected ...`; problems of overrides first, then those of the files."""
    problems = sorted(error.errors(), key=lambda problem: ".".join(_place_of(problem["loc"])[0]) not in raw)
    problem = problems[0]
    place, kind = _place_of(problem["loc"])
    key = ".".join(place)
    if problem["type"] == "extra_forbidden":
        if key not in raw and keys.EXPERIMENT in raw and place[0] in raw:
            experiment, group = f"+experiment={raw[keys.EXPERIMENT]}", f"{place[0]}={raw[place[0]]}"
            return f"{experiment} sets {key}, which {group} lacks; leave out one of them"
        of_kind = f" where {place[0]}.kind is {kind}" if kind else ""
        return f"there is no key {one_line(key)}{of_kind}; {keys.hint(key, kind)}"
    if problem["type"] == "not_json":
        shown = one_line(key + problem["msg"])
        return f"{shown} (it is passed on as JSON)"
    if problem["type"] == "missing":
        return f"{key} is missing; it cannot be deleted"
    if problem["type"] == "unfit":  # of several keys of a section, the message is about one
        name, reason = problem["ctx"]["key"], problem["ctx"]["reason"]
        found = raw.get(f"{key}.{name}", problem["input"][name])
        return f"{one_line(f'{key}.{name}={found}')}: must be {reason}"
    found = raw[key] if key in raw else repr(problem["input"])
    shown = one_line(f"{key}={found[:_MOST_SHOWN]}")
    expected = problem["msg"].removeprefix("Input should be ")
    choices = re.findall(r"'([^']+)'", expected) if problem["type"] == "literal_error" else []
    return f"{shown}: expected {expected}{keys.did_you_mean(str(problem['input']), choices)}"
