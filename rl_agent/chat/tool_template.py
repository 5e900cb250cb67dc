"""Finds out in which format a model's chat template writes tool calls: a call is rendered and read back."""

import json
from collections.abc import Sequence

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.messages import countable, messages_of
from rl_agent.chat.context.window import ContextView, Round
from rl_agent.chat.parse import opened_thought, parse_action
from rl_agent.chat.template import Message
from rl_agent.chat.tool_formats import FORMATS, Schema, ToolCall, ToolFormat, UnreadableCall
from rl_agent.chat.turns import text_after
from rl_agent.errors import ConfigError
from rl_agent.types import Observation

_CALL = ToolCall("probe_tool", {"key": "value"})
_RESULT = "probe-result"
_IMAGE = "image"
_PART = "'type':"
"""The text of a template that writes a list of parts as Python prints it contains this."""
_TOOL: Schema = {
    "type": "function",
    "function": {
        "name": _CALL.name,
        "description": "Probes.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "What is probed."}},
            "required": ["key"],
        },
    },
}
_KEY = "policy_config.action_format=tool_calls"


def tool_format_of(chat: ChatTokenizer, asked_by: str = _KEY) -> ToolFormat:
    """Return the format in which the template writes tool calls; `asked_by` begins the error's line.

    Raises ConfigError for a template that shows no tools, writes calls in a format that is not known here, or
    hides what tools answer.
    """
    instead = ", or use policy_config.action_format=text" if asked_by == _KEY else ""
    question: list[Message] = [{"role": "user", "content": "…"}]
    start = chat.render(question, [_TOOL], add_generation_prompt=True)
    if _CALL.name not in start:
        raise ConfigError(
            f"{asked_by}: the model's chat template does not show `tools`; give the model folder a"
            f" chat_template.jinja that does{instead}"
        )
    tool_format = next((form for form in FORMATS if _writes(chat, form, question, start)), None)
    if tool_format is None:
        names = ", ".join(form.name for form in FORMATS)
        raise ConfigError(
            f"{asked_by}: the model's chat template writes calls in another format than {names}; give the"
            f" model folder a chat_template.jinja with one of these{instead}"
        )
    try:
        answer = chat.decode(chat.extend((), Observation(_RESULT), is_of_tool=True))
    except ConfigError as error:
        raise ConfigError(f"{asked_by}: the model cannot be shown what a tool answers: {error}") from error
    if _RESULT not in answer:
        raise ConfigError(f"{asked_by}: the model's chat template does not show what a tool answers")
    return tool_format


def check_images_of_tools(chat: ChatTokenizer, system_prompt: str | None) -> None:
    """Refuse a template that cannot show images in what tools answer, call after call. Raises ConfigError.

    With images the server renders the whole conversation at every turn. Some templates take what a tool
    answers once, and refuse or hide what follows the next call.
    """
    try:
        takes_images = _PART not in _rendered(chat, system_prompt, [True])
    except ConfigError:
        takes_images = False  # it takes text alone: there a server marks images by itself
    try:
        whole = _rendered(chat, system_prompt, [takes_images] * 3)
        if takes_images and (
            _PART in whole
            or whole == _rendered(chat, system_prompt, [True, False, True])
            or whole == _rendered(chat, system_prompt, [True, True, False])
        ):
            raise ConfigError("it does not show images in what a tool answers")
    except ConfigError as error:
        raise ConfigError(
            f"{_KEY}: the model's chat template cannot show images in a conversation with two tool calls:"
            f" {error}; give the model folder a chat_template.jinja that can, or use"
            " policy_config.action_format=text"
        ) from error


def _conversation(system_prompt: str | None, has_image: Sequence[bool]) -> list[Message]:
    """Return messages in which each observation after the first is what a tool answered."""
    shown = [Observation(_RESULT, (_IMAGE,) if is_image else ()) for is_image in has_image]
    rounds = [Round(shown_result, "a call", _CALL.name, is_call=True) for shown_result in shown[:-1]]
    return countable(
        messages_of(
            system_prompt, ContextView(), rounds, shown[-1], lambda _: {"type": _IMAGE}, lambda text, _: text
        )
    )


def _rendered(chat: ChatTokenizer, system_prompt: str | None, has_image: Sequence[bool]) -> str:
    return chat.render(_conversation(system_prompt, has_image), [_TOOL], add_generation_prompt=True)


def _writes(chat: ChatTokenizer, written_as: ToolFormat, question: list[Message], start: str) -> bool:
    """Return whether the template writes a call in this format."""
    for arguments in (_CALL.arguments, json.dumps(_CALL.arguments)):  # templates differ in what they take
        function = {"name": _CALL.name, "arguments": arguments}
        call = {"id": "call00000", "type": "function", "function": function}
        answer: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            whole = chat.render([*question, answer], [_TOOL], add_generation_prompt=False)
        except ConfigError:
            continue
        response = chat.without_ending(text_after(_until_thought(start), whole))
        spoken = parse_action(response)
        try:
            if written_as.begins(spoken) and written_as.read(spoken, {_CALL.name: _TOOL})[0] == _CALL:
                return True
        except UnreadableCall:
            continue
    return False


def _until_thought(start: str) -> str:
    """Return a prompt up to the thought that its end begins, with which a call need not begin."""
    opened = opened_thought(start)
    return start if opened is None else start.rstrip().removesuffix(opened.begin)
