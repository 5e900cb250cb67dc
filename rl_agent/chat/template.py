"""Renders a model's chat template as `transformers` would, without importing it."""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rl_agent.errors import ConfigError, in_one_line

Message = dict[str, Any]
_UNSAID = {"tools": None, "documents": None}
"""Templates may ask `tools is not none`: what is not given is None and not undefined."""


class _Generation(Extension):
    """The tag `generation` that marks what a model said, which some templates have; its body is rendered."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - as the library declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


@lru_cache(maxsize=2)
def compile_template(source: str, origin: str) -> jinja2.Template:
    """Compile a template in a sandbox. Raises ConfigError that names `origin`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{origin}: the chat template cannot be read: {error}") from error


def render(
    template: jinja2.Template,
    messages: list[Message],
    variables: Mapping[str, Any],
    *,
    add_generation_prompt: bool,
) -> str:
    """Render a conversation. Raises ConfigError if the template refuses it, or cannot take it."""
    values: dict[str, Any] = _UNSAID | dict(variables)
    try:
        return template.render(messages=messages, add_generation_prompt=add_generation_prompt, **values)
    except MemoryError:  # no matter of this conversation
        raise
    except Exception as error:  # a template may add a text to a list, or divide by 0
        raise ConfigError(f"the chat template refuses this conversation: {in_one_line(error)}") from error


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Take the place of Jinja's own filter, whose escapes of HTML models were not trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
