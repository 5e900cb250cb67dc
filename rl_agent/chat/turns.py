"""Finds the texts that a chat template puts around a response: conversations with a marker are rendered."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from rl_agent.chat.template import Message
from rl_agent.errors import ConfigError

_MARKER = "response-goes-here"
_ASKED: Message = {"role": "user", "content": "…"}
_SAID: Message = {"role": "assistant", "content": _MARKER}

Render = Callable[[list[Message], bool], str]
"""Renders messages, with or without the beginning of a response; raises ConfigError if it cannot."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The texts around a response; empty where the template refuses the conversations that show them."""

    prompt: str
    """A first prompt."""
    opening: str
    """The end of a prompt that is no part of an earlier response's header; what is sampled continues it."""
    end: str
    """All that follows the last response of a conversation."""
    next: str
    """All that follows a response before the next message's content, and that content."""

    @classmethod
    def of(cls, render: Render) -> "Turns":
        question, prompt = _rendered(render, [_ASKED]), _rendered(render, [_ASKED], begins=True)
        before, _, end = _rendered(render, [_ASKED, _SAID]).partition(_MARKER)
        following = _rendered(render, [_ASKED, _SAID, _ASKED]).partition(_MARKER)[2]
        return cls(prompt, text_after(before, prompt) if before.startswith(question) else "", end, following)


def text_after(start: str, whole: str) -> str:
    """Return a text from where it differs from the beginning of another one."""
    pairs = zip(start, whole, strict=False)
    return whole[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :]


def _rendered(render: Render, messages: list[Message], *, begins: bool = False) -> str:
    try:
        return render(messages, begins)
    except ConfigError:
        return ""
