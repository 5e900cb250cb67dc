"""A view of an episode, written as tokens and as messages: each part has the role of who said it."""

import pytest

from rl_agent.chat.context.messages import countable, messages_of, tokens_of
from rl_agent.chat.context.window import ContextView, Round
from rl_agent.types import Observation
from tests.support.tiny_chat import tiny_chat
from tests.unit.chat.tool_templates import HERMES

ROUNDS = [
    Round(Observation("the task"), "call it", "a()", is_call=True),
    Round(Observation("its answer"), "look", "look"),
    Round(Observation("a page"), "call again", "b()", is_call=True),
]
LAST = Observation("the last answer")
SUMMARISED = ContextView(whole_from=2, summary="went there")


def messages(view, *, system=None, rounds=ROUNDS, last=LAST, **more):
    return messages_of(system, view, rounds, last, lambda path: {"type": path}, lambda text, _: text, **more)


def roles(view, **more):
    return [(message["role"], message["content"]) for message in messages(view, **more)]


def test_the_observation_after_a_call_is_a_tools_and_all_else_a_persons():
    assert roles(ContextView()) == [
        ("user", "the task"),
        ("assistant", "call it"),
        ("tool", "its answer"),
        ("assistant", "look"),
        ("user", "a page"),
        ("assistant", "call again"),
        ("tool", "the last answer"),
    ]


@pytest.mark.parametrize(("is_of_user", "role"), [(False, "tool"), (True, "user")])
def test_a_harness_question_after_a_call_is_a_persons_in_both_forms(is_of_user, role):
    assert messages(ContextView(), is_of_user=is_of_user)[-1]["role"] == role
    responses = [[65], [66], [67]]
    tokens = tokens_of(tiny_chat(HERMES), None, ContextView(), ROUNDS, responses, LAST, is_of_user=is_of_user)
    before, _, after = tiny_chat(HERMES).decode(tokens).rpartition("the last answer")
    assert ("<tool_response>" in before.rpartition("<|im_start|>")[2]) == (role == "tool")
    assert after.count("<|im_start|>") == 1, "the turn of the model begins"


def test_everything_hidden_stands_once_before_the_first_shown_round():
    first, *rest = roles(SUMMARISED, system="Act.")[1:]
    assert first == ("user", "the task\n\nSummary of the earlier steps:\nwent there\n\na page")
    assert rest == [("assistant", "call again"), ("tool", "the last answer")]
    shown = tiny_chat().decode(tokens_of(tiny_chat(), "Act.", SUMMARISED, ROUNDS, [[65], [66], [67]], LAST))
    assert shown.count("the task") == shown.count("went there") == 1
    assert "look" not in shown


def test_a_growing_context_leaves_the_first_prompt_of_siblings_alone():
    chat, first = tiny_chat(), Observation("the task")
    begun = tokens_of(chat, None, ContextView(), [], [], first)
    tokens_of(chat, None, ContextView(), [Round(first, "a", "a")], [[65]], LAST)
    assert tokens_of(chat, None, ContextView(), [], [], first) == begun == chat.start(None, first)


@pytest.mark.parametrize("system", [None, ""])
def test_without_a_system_prompt_there_is_no_message_of_it(system):
    assert roles(ContextView(), system=system)[0] == ("user", "the task")


def test_an_image_stands_between_the_text_before_it_and_about_it():
    seen = Observation("what you see", ("one", "two"))
    [message] = messages(ContextView(), rounds=[], last=seen)
    assert message["content"] == [{"type": "one"}, {"type": "two"}, {"type": "text", "text": "what you see"}]
    first = messages(SUMMARISED, rounds=[*ROUNDS[:2], Round(seen, "ok", "ok")])[0]["content"]
    assert first[0]["text"].startswith("the task\n\nSummary") and first[0]["text"].endswith("\n\n")
    assert [part["type"] for part in first[1:]] == ["one", "two", "text"]


def test_tokens_are_counted_of_images_without_their_content():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [
        {"role": "user", "content": [image, {"type": "text", "text": "t"}]},
        {"role": "user", "content": "u"},
    ]
    assert countable(messages) == [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "t"}]},
        {"role": "user", "content": "u"},
    ]
