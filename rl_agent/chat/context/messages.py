"""Writes a view of an episode as the tokens of a text context, or as the messages that images need."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rl_agent.chat.chat import ChatTokenizer, content_of, tool_message
from rl_agent.chat.context.window import ContextView, Round, opening
from rl_agent.chat.template import Message
from rl_agent.chat.tool_formats import Schema
from rl_agent.types import Observation


def tokens_of(
    chat: ChatTokenizer,
    system_prompt: str | None,
    view: ContextView,
    rounds: Sequence[Round],
    responses: Sequence[Sequence[int]],
    observation: Observation,
    tools: Sequence[Schema] = (),
    *,
    is_of_user: bool = False,
) -> list[int]:
    """Return the tokens of a whole prompt; its responses are the sampled tokens, never tokenised again."""
    shown = [*(turn.observation for turn in rounds[view.whole_from :]), observation]
    before = opening(view, rounds, observation)
    if tools or before:
        token_ids = chat.start(system_prompt, shown[0], tools, opening=before)
    else:
        token_ids = list(_start(chat, system_prompt, shown[0]))
    last = len(rounds) - 1
    for number, following in enumerate(shown[1:], view.whole_from):
        is_of_tool = rounds[number].is_call and not (is_of_user and number == last)
        token_ids += responses[number]
        token_ids += chat.extend(responses[number], following, is_of_tool=is_of_tool)
    return token_ids


@lru_cache(maxsize=32)
def _start(chat: ChatTokenizer, system_prompt: str | None, observation: Observation) -> Sequence[int]:
    """Make the tokens of a first prompt once for all siblings, which start one after the other."""
    return chat.start(system_prompt, observation)


def messages_of(
    system_prompt: str | None,
    view: ContextView,
    rounds: Sequence[Round],
    observation: Observation,
    image_part: Callable[[str], dict[str, Any]],
    plain: Callable[[str, bool], str],
    *,
    is_of_user: bool = False,
) -> list[Message]:
    """Return the messages of a whole prompt; `image_part` makes the part that shows an image.

    `plain` takes control tokens out of all that the model did not say, and the model's markers out of what a
    tool answered, which is its second argument: a server reads both in a text. `is_of_user`: the last message
    is not what a tool answered, whatever was called before it.
    """
    messages: list[Message] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    before, is_of_tool = plain(opening(view, rounds, observation), False), False

    def shown(turn_observation: Observation, *, is_of_tool: bool) -> Message:
        harmless = replace(turn_observation, text=plain(turn_observation.text, is_of_tool))
        return _shown(content_of(before, harmless, image_part), is_of_tool=is_of_tool)

    for turn in rounds[view.whole_from :]:
        messages.append(shown(turn.observation, is_of_tool=is_of_tool))
        messages.append({"role": "assistant", "content": turn.response})
        before, is_of_tool = "", turn.is_call
    return [*messages, shown(observation, is_of_tool=is_of_tool and not is_of_user)]


def _shown(content: str | list[dict[str, Any]], *, is_of_tool: bool) -> Message:
    return tool_message(content) if is_of_tool else {"role": "user", "content": content}


def countable(messages: Sequence[Message]) -> list[Message]:
    """Return the messages as a chat template renders them: images as parts without a content."""
    return [replace_images(message) for message in messages]


def replace_images(message: Message) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return message
    parts = [part if part["type"] == "text" else {"type": "image"} for part in content]
    return message | {"content": parts}
