"""Hydra composes configuration groups, the words change keys, pydantic checks the result; nothing else does.

    words ─► names checked ─► groups: Hydra ─► keys: set in what it composed ─► interpolations ─► model

A run, a manager that stands alone, a worker's `--weights` and `what-if` all come through `compose`, so a word
means the same to each of them. Text that Hydra's grammar cannot read is set as it was typed, never expanded.
"""

import functools
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from rl_agent.config.overrides import keys
from rl_agent.config.overrides.words import (
    COMMAND_LINE,
    Kind,
    Override,
    Text,
    parse_override,
    read_value,
    reject_duplicates,
)
from rl_agent.config.plan import Config
from rl_agent.errors import ConfigError, UsageError
from rl_agent.paths import CONFIG_DIR
from rl_agent.system.terminal import one_line

_MOST_SHOWN = 500
"""Characters of a value in a message."""
S = TypeVar("S", bound=BaseModel)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Schema(Generic[S]):
    """A file of defaults below `configs/`, and the model that checks what becomes of it."""

    file: str
    """The file's name without `.yaml`."""
    model: type[S]
    groups: tuple[str, ...] = ()
    """Config groups that a word may choose an option of."""


RUN = Schema("config", Config, keys.GROUPS)


@dataclass(frozen=True, slots=True)
class ComposedConfig(Generic[S]):
    """A checked configuration and what was decided on the user's behalf."""

    config: S
    notes: tuple[str, ...]


def compose_words(schema: Schema[S], words: Iterable[str], source: str = COMMAND_LINE) -> S:
    """Compose a section that stands alone; what was decided on the way is logged. Raises like `compose`."""
    composed = compose(schema, [parse_override(word, source, {}) for word in words])
    for note in composed.notes:
        _log.warning("%s", note)
    return composed.config


def compose(schema: Schema[S], words: Sequence[Override], *, has_gpu: bool = True) -> ComposedConfig[S]:
    """Compose and check. Raises `UsageError` for a word, `ConfigError` for a value that does not fit."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    reject_duplicates(words)
    for word in words:
        _check_key(word, schema, words, has_gpu=has_gpu)
    chosen = [word for word in words if _is_choice(word, schema)]
    try:
        composed_values, on_cpu = _hydra(schema.file, tuple(map(_group_word, chosen)), has_gpu)
        values = _with_keys(composed_values, [word for word in words if word not in chosen])
    except (HydraException, OmegaConfBaseException) as error:
        raise _explain(error, words) from error
    raw = {word.name: word.raw for word in words if word.kind is not Kind.DELETE}
    notes = [f"no GPU is visible: {' '.join(on_cpu)}"] if on_cpu else []
    return ComposedConfig(_validate(schema.model, values, raw), tuple(notes))


def _is_choice(word: Override, schema: Schema[Any]) -> bool:
    """Return whether a word chooses an option of a config group, rather than setting keys of its section."""
    return word.name in schema.groups and not word.raw.startswith("{")


def _group_word(word: Override) -> str:
    return f"~{word.name}" if word.kind is Kind.DELETE else f"{word.kind.value}{word.name}={word.raw}"


@functools.lru_cache(maxsize=64)
def _hydra(file: str, words: tuple[str, ...], has_gpu: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what Hydra makes of the groups, and the options that it took for want of a GPU.

    Kept: it takes a tenth of a second. Its interpolations are not resolved yet.
    """
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    on_cpu: list[str] = []

    def by_gpu(with_gpu: str, without: str) -> str:
        on_cpu.extend([] if has_gpu else [without])
        return with_gpu if has_gpu else without

    OmegaConf.register_new_resolver("by_gpu", by_gpu, replace=True)
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        composed = compose(file, overrides=list(words), return_hydra_config=True)
    choices = sorted(composed.hydra.runtime.choices.items())
    taken = tuple(f"{group}={option}" for group, option in choices if option in on_cpu)
    OmegaConf.set_struct(composed, False)
    del composed["hydra"]
    section = composed[file.partition("/")[0]] if "/" in file else composed
    values: Any = OmegaConf.to_container(section, resolve=False)
    return values, taken


def _with_keys(values: dict[str, Any], words: Sequence[Override]) -> dict[str, Any]:
    """Return the configuration with what the words set in it, and every interpolation resolved."""
    from omegaconf import OmegaConf

    config = OmegaConf.create(values)
    for word in words:
        value = Text(word.raw) if word.is_literal else read_value(word.raw)
        if word.kind is Kind.DELETE:
            _delete(config, word)
        else:
            # The key was checked, so it may be set whether or not a file mentions it.
            text = _escaped(value) if isinstance(value, Text) else value
            OmegaConf.update(config, word.name, text, merge=True, force_add=True)
    content: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    return content  # type: ignore[no-any-return]


def _escaped(text: str) -> str:
    """Return the text so that OmegaConf expands nothing in it."""
    return re.sub(r"(\\*)\$\{", lambda match: f"{match[1] * 2}\\${{", text)


def _delete(config: Any, word: Override) -> None:
    from omegaconf import OmegaConf

    section, _, last = word.name.rpartition(".")
    inside = OmegaConf.select(config, section)
    if inside is None or last not in inside:
        raise ConfigError(f"{word.shown}: {word.name} is not set; leave the word out")
    del inside[last]


def _check_key(word: Override, schema: Schema[S], words: Sequence[Override], *, has_gpu: bool) -> None:
    """Refuse a key, or an option of a config group, that does not exist. Raises `ConfigError`."""
    if word.name in schema.groups:
        options = keys.group_options(word.name)
        if word.kind is not Kind.DELETE and _is_choice(word, schema) and word.raw not in options:
            nearest = keys.did_you_mean(word.raw, options)
            raise ConfigError(f"{word.shown}: {word.key} is one of {', '.join(options)}{nearest}")
        if word.name == keys.EXPERIMENT and word.kind is Kind.SET:
            raise UsageError(f"{word.shown}: an experiment is added with +{word.shown}")
        return
    is_declared = word.name in keys.valid_keys(schema.model)
    if not is_declared and not keys.is_free_form(word.name, schema.model):
        hint = keys.hint(word.name, model=schema.model, trainer=_trainer_kind(schema, words, has_gpu))
        raise ConfigError(f"{word.shown}: there is no key {word.name}; {hint}")
    if is_declared and word.kind is Kind.DELETE:
        raise ConfigError(f"{word.shown}: a key cannot be deleted; set it, to null where that is allowed")


def _trainer_kind(schema: Schema[Any], words: Sequence[Override], has_gpu: bool) -> str | None:
    """Return the kind of trainer that the words choose; None where there is none, or a choice is wrong."""
    from hydra.errors import HydraException

    chosen = tuple(_group_word(word) for word in words if _is_choice(word, schema))
    try:
        trainer = _hydra(schema.file, chosen, has_gpu)[0].get("trainer")
    except HydraException:
        return None
    return trainer.get("kind") if isinstance(trainer, dict) else None


def _explain(error: Exception, words: Sequence[Override]) -> ConfigError:
    """Return one line about the word that Hydra stumbled over."""
    reason = one_line(" ".join(str(error).split()))
    named = next((word.shown for word in words if word.name in reason), "configuration")
    if missing := re.match(r"Interpolation key '(.+)' not found", reason):
        reason = f"{missing[1]} is missing; it cannot be deleted"
    if reason.startswith("Could not override 'trainer/recipe'"):
        reason = "recipes are of the streaming trainer; add trainer=grpo"
    return ConfigError(f"{named}: {reason}")


def _validate(model: type[S], values: dict[str, Any], raw: dict[str, str]) -> S:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        if _retype_strings(values, error, raw):
            return _validate(model, values, raw)
        raise ConfigError(_first_problem(model, error, raw)) from error


def _retype_strings(values: dict[str, Any], error: ValidationError, raw: dict[str, str]) -> bool:
    """Give a string key the text 007 for `run_name=007`, not the number 7; True if one was changed."""
    is_changed = False
    for problem in error.errors():
        place = [str(part) for part in problem["loc"]]
        key, value = ".".join(place), problem["input"]
        if problem["type"] == "string_type" and isinstance(value, bool | int | float) and key in raw:
            keys.put(values, place, str(value) if "${" in raw[key] else raw[key])
            is_changed = True
    return is_changed


def _place_of(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[str], str | None]:
    """Return the names of a key, and the kind that pydantic puts among them where a section is a choice.

    A choice of types ends with one that no key has: `targets`, `literal['all-linear']`.
    """
    names = [part for part in map(str, loc) if not part.endswith("]")]
    if len(names) > 1 and names[1] in keys.kinds_of(names[0], model):
        return [names[0], *names[2:]], names[1]
    return names, None


def _first_problem(model: type[BaseModel], error: ValidationError, raw: dict[str, str]) -> str:
    """Return `key=value: expected ...`; problems of overrides first, then those of the files."""
    problem = min(error.errors(), key=lambda fault: ".".join(_place_of(model, fault["loc"])[0]) not in raw)
    place, kind = _place_of(model, problem["loc"])
    key = ".".join(place)
    if problem["type"] == "extra_forbidden":
        if key not in raw and keys.EXPERIMENT in raw and place[0] in raw:
            experiment, group = f"+experiment={raw[keys.EXPERIMENT]}", f"{place[0]}={raw[place[0]]}"
            return f"{experiment} sets {key}, which {group} lacks; leave out one of them"
        of_kind = f" where {place[0]}.kind is {kind}" if kind else ""
        return f"there is no key {one_line(key)}{of_kind}; {keys.hint(key, kind, model=model)}"
    if problem["type"] == "not_json":
        shown = one_line(key + problem["msg"])
        return f"{shown} (it is passed on as JSON)"
    if problem["type"] == "missing":
        return f"{key} is missing; it cannot be deleted"
    if problem["type"] == "unfit":  # of several keys of a section, the message is about one
        name, reason = problem["ctx"]["key"], problem["ctx"]["reason"]
        value = raw.get(f"{key}.{name}", problem["input"][name])
        return f"{one_line(f'{key}.{name}={value}')}: must be {reason}"
    value = raw[key] if key in raw else repr(problem["input"])
    shown = one_line(f"{key}={value[:_MOST_SHOWN]}")
    if problem["type"] == "value_error":
        return f"{shown}: {problem['msg'].removeprefix('Value error, ')}"
    expected = problem["msg"].removeprefix("Input should be ")
    choices = re.findall(r"'([^']+)'", expected) if problem["type"] == "literal_error" else []
    return f"{shown}: expected {expected}{keys.did_you_mean(str(problem['input']), choices)}"
