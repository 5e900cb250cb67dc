"""Messages of OpenAI's clients as chat templates take them, and which of them are the same."""

import pytest

from rl_agent.chat.client_messages import digests_of, marks_of, message_of, read_messages, shown
from rl_agent.chat.tool_formats import ToolCall

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'}}

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cGl4ZWxz"}}


def answer(**fields):
    return {"role": "assistant", "content": None} | fields


def mark(*messages, tools=()):
    return marks_of(tools, read_messages(list(messages)))[-1]


def test_roles_parts_and_calls_become_what_templates_take():
    messages = read_messages(
        [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "add", "name": "me"},
            answer(tool_calls=[CALL], refusal=None, audio=None),
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]
    )
    function = {"name": "add", "arguments": {"a": 1, "b": [2]}}
    assert messages == (
        {"role": "system", "content": "ab"},
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": "", "tool_calls": [CALL | {"function": function}]},
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "messages: expected a list"),
        ("hello", "messages: expected a list"),
        ([{"role": "user", "content": "a"}, "b"], r"messages\[1\]: expected an object with one of the roles"),
        ([{"role": "function", "content": "a"}], r"messages\[0\]: expected an object with one of the roles"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "only texts and images can be read here"),
        ([{"role": "user", "content": [IMAGE | {"image_url": "https://a.b"}]}], "no address is followed"),
        ([answer(content=[IMAGE])], "an answer has no images"),
        ([{"role": "user", "content": 7}], "only texts and images can be read here"),
        ([answer(tool_calls=["add"])], "expected calls of functions"),
        ([answer(tool_calls=[{"function": {}}])], "expected calls of functions"),
    ],
)
def test_what_is_no_message_is_refused_with_its_place(given, reason):
    with pytest.raises(ValueError, match=reason):
        read_messages(given)


def test_an_echo_has_the_mark_of_the_answer_whatever_a_client_makes_of_it():
    own_mark = marks_of((), [message_of("I add.", [ToolCall("add", {"b": [2], "a": 1})])])[-1]
    function = {"name": "add", "arguments": '{"a":1,"b":[2]}'}
    parts = [{"type": "text", "text": " I add.\n"}]
    echo = answer(content=parts, tool_calls=[{"id": "other", "function": function}], annotations=[])
    assert mark(echo) == own_mark


@pytest.mark.parametrize(
    "other",
    [
        [{"role": "user", "content": "a "}],
        [{"role": "system", "content": "a"}],
        [{"role": "user", "content": "a"}, answer(content="a")],
        [answer(tool_calls=[CALL])],
    ],
)
def test_other_messages_have_other_marks(other):
    assert mark(*other) != mark({"role": "user", "content": "a"})


def test_the_tools_belong_to_a_conversation():
    message, tool = {"role": "user", "content": "a"}, {"type": "function", "function": {"name": "add"}}
    assert mark(message) != mark(message, tools=[tool])


def test_arguments_that_are_not_json_stay_a_text():
    function = {"name": "add", "arguments": "{broken"}
    (message,) = read_messages([answer(tool_calls=[{"function": function}])])
    assert message["tool_calls"][0]["function"] == function


def test_a_person_sees_roles_unless_it_is_one_question():
    assert shown(read_messages([{"role": "user", "content": "a"}])) == "a"
    messages = read_messages([{"role": "system", "content": "b"}, answer(tool_calls=[CALL])])
    assert shown(messages) == ('[system] b\n\n[assistant]\n{"name": "add", "arguments": {"a": 1, "b": [2]}}')


def test_an_image_is_a_part_that_names_its_file_and_marks_its_conversation():
    images = {}
    text = {"type": "text", "text": "Look"}
    (message,) = read_messages([{"role": "user", "content": [text, IMAGE]}], images)
    (digest,) = digests_of([message])
    assert message["content"] == [text, {"type": "image", "digest": digest}]
    assert images == {digest: b"pixels"}
    assert shown([message]) == "Look"
    other = message | {"content": [text, {"type": "image", "digest": "0" * 64}]}
    assert marks_of((), [message]) != marks_of((), [other])
