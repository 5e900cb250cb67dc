"""Divides a response into what an OpenAI client is given: reasoning, content, tool calls. Pure.

A call that cannot be read stays text, as with the parsers of inference servers. Nothing here raises on what a
model wrote, and all of it takes linear time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rl_agent.chat.parse import Thought, parse_action, parse_thought
from rl_agent.chat.tool_formats import Schema, ToolCall, ToolFormat, UnreadableCall

MAX_CALLS = 32
"""The most calls that are read of one response."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The parts of a response."""

    content: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


def read_reply(
    response: str, opened: Thought | None, written_as: ToolFormat | None, schemas: Mapping[str, Schema]
) -> Reply:
    """Read a response; `opened` is the thought that its prompt began, `written_as` None without tools."""
    spoken, reasoning = parse_action(response, opened), parse_thought(response, opened)
    if written_as is None or not written_as.begins(spoken):
        return Reply(spoken, reasoning)
    calls, rest = list[ToolCall](), spoken
    try:
        while rest and len(calls) < MAX_CALLS:
            call, rest = written_as.read(rest, schemas)
            calls.append(call)
    except UnreadableCall:
        if not calls:
            return Reply(spoken, reasoning)
    return Reply(_before(spoken, written_as), reasoning, tuple(calls))


def _before(spoken: str, written_as: ToolFormat) -> str:
    """Return what is said before the first call."""
    begins = [place for mark in written_as.marks if (place := spoken.find(mark)) >= 0]
    return spoken[: min(begins, default=0)].strip()
