"""Responses divided into reasoning, content and calls."""

import json

import pytest

from rl_agent.chat.parse import THOUGHTS
from rl_agent.chat.reply import MAX_CALLS, Reply, read_reply
from rl_agent.chat.tool_formats import FORMATS, ToolCall
from tests.unit.chat.test_tool_formats import FIND, SCHEMAS, WRITTEN

HERMES = FORMATS[0]


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "mistral, by name"])
def test_several_calls_are_read_with_the_words_before_them(name):
    written_as = next(form for form in FORMATS if form.name == name.partition(",")[0])
    text = WRITTEN[name]
    reply = read_reply(f"<think>I look</think>So:\n{text}\n{text}", None, written_as, SCHEMAS)
    assert reply == Reply("So:", "I look", (FIND, FIND))


def test_calls_that_are_a_whole_response_leave_no_content():
    text = WRITTEN["llama3_json"]
    assert read_reply(f"{text}; {text}", None, FORMATS[3], SCHEMAS) == Reply("", "", (FIND, FIND))


def test_calls_in_one_list_are_read_one_by_one():
    calls = json.dumps([{"name": "find", "arguments": {"page": n}} for n in range(3)])
    reply = read_reply(f"[TOOL_CALLS]{calls}", None, FORMATS[2], SCHEMAS)
    assert reply.calls == tuple(ToolCall("find", {"page": n}) for n in range(3))


def test_a_call_that_cannot_be_read_is_text():
    text = "<tool_call>find it</tool_call>"
    assert read_reply(text, None, HERMES, {}) == Reply(text)
    assert read_reply(WRITTEN["hermes"] + text, None, HERMES, SCHEMAS).calls == (FIND,)


def test_without_tools_a_call_is_text():
    assert read_reply(WRITTEN["hermes"], None, None, {}) == Reply(WRITTEN["hermes"])


def test_a_call_in_a_thought_is_a_thought():
    reply = read_reply(f"I may {WRITTEN['hermes']}</think>no", THOUGHTS[0], HERMES, SCHEMAS)
    assert (reply.content, reply.calls) == ("no", ())
    assert reply.reasoning.startswith("I may <tool_call>")


def test_a_thought_that_the_limit_cut_leaves_no_content():
    assert read_reply("17 + 25 is", THOUGHTS[0], None, {}) == Reply("", "17 + 25 is")


def test_endless_calls_are_bounded():
    assert len(read_reply(WRITTEN["hermes"] * 10_000, None, HERMES, SCHEMAS).calls) == MAX_CALLS
