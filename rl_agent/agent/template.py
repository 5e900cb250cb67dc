"""Renders a model's chat template as `transformers` would, without importing it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rl_agent.errors import ConfigError

Message = dict[str, Any]


def compile_template(source: str, origin: str) -> jinja2.Template:
    """Compile a template in a sandbox. Raises ConfigError that names `origin`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
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
    """Render a conversation. Raises ConfigError if the template refuses it."""
    try:
        return template.render(messages=messages, add_generation_prompt=add_generation_prompt, **variables)
    except jinja2.TemplateError as error:
        raise ConfigError(f"the chat template refuses this conversation: {error}") from error


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    # Jinja's own filter escapes HTML characters, which models were not trained on.
    import json

    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
