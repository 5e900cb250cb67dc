"""An episode whose agent acts by tool calls."""

import json

import pytest

from rl_agent.chat.context.window import ContextLimits
from rl_agent.chat.tool_calls import MORE_CALLS, Toolbox
from rl_agent.chat.tool_template import tool_format_of
from rl_agent.rollout.collector.conversation import Conversation
from rl_agent.types import Observation, Status
from tests.support.tiny_chat import tiny_chat
from tests.unit.chat.tool_templates import HERMES
from tests.unit.rollout.episodes import FakeEngine, FakeEnvironment, draws_of, make_policy, run_episode

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


async def tools_of(task):
    return [ADD]


def tool_policy(engine, template=HERMES):
    chat = tiny_chat(template)
    return make_policy(engine, chat, tool_format=tool_format_of(chat))


async def run(response, *, length=1, max_steps=10, template=HERMES, tools_of=tools_of):
    engine, environment = FakeEngine(response), FakeEnvironment(length)
    policy = tool_policy(engine, template)
    trajectory = await run_episode(environment, engine, policy=policy, tools_of=tools_of, max_steps=max_steps)
    return trajectory, environment, [policy.chat.decode(context) for context in engine.contexts]


def conversing(engine, **limits):
    chat = tiny_chat(HERMES)
    return Conversation(draws_of(make_policy(engine, chat, **limits)), Toolbox([ADD], tool_format_of(chat)))


async def test_the_environment_gets_the_call_and_its_answer_returns_as_a_tools():
    trajectory, environment, contexts = await run(CALL, length=2)

    call = {"name": "add", "arguments": {"a": 1}}
    assert [json.loads(action) for action in environment.actions] == [call, call]
    assert json.dumps(ADD) in contexts[0]
    assert contexts[1] == (
        f"{contexts[0]}{CALL}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\ngo on\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert [step.invalid for step in trajectory.steps] == [False, False]
    assert trajectory.reward == 1.0


async def test_an_unreadable_call_is_answered_counted_and_not_executed():
    trajectory, environment, contexts = await run("<tool_call>add one</tool_call>", max_steps=2)

    assert environment.actions == []
    assert trajectory.status is Status.COMPLETED
    assert (trajectory.reward, trajectory.truncated) == (0.0, True)
    assert [step.invalid for step in trajectory.steps] == [True, True]
    assert "<tool_response>\nThis tool call cannot be read: " in contexts[1]


async def test_a_call_inside_a_thought_that_is_not_ended_is_not_carried_out():
    thinking = HERMES.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}")
    _, environment, _ = await run(f"I may say {CALL}", template=thinking)
    assert environment.actions == [""]

    _, environment, _ = await run(f"I may say {CALL}</think>{CALL}", template=thinking)
    assert [json.loads(action)["name"] for action in environment.actions] == ["add"]


async def test_words_without_a_call_reach_the_environment_as_a_persons():
    _, environment, contexts = await run("The sum is 2.", length=2)

    assert environment.actions == ["The sum is 2."] * 2
    assert contexts[1].endswith("<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n")


async def test_of_two_calls_the_second_is_refused_in_what_the_agent_sees():
    _, environment, contexts = await run(CALL * 2, length=2)

    assert len(environment.actions) == 2
    assert f"go on\n{MORE_CALLS}\n</tool_response>" in contexts[1]


async def test_an_environment_whose_tools_cannot_be_listed_fails_its_episode():
    async def broken(task):
        raise OSError("the server is gone")

    trajectory, _, _ = await run(CALL, tools_of=broken)
    assert trajectory.status is Status.FAILED
    assert "OSError: the server is gone" in trajectory.failure.message


async def test_with_images_the_server_renders_the_tools_and_the_answers(tmp_path):
    engine = FakeEngine(CALL)
    conversation = conversing(engine)
    for text in ("look", "clicked"):
        await conversation.respond(Observation(text, (str(tmp_path / "a.png"),)))

    assert [message["role"] for message in engine.messages[1]] == ["user", "assistant", "tool"]
    assert engine.tools == [(ADD,), (ADD,)]


@pytest.mark.parametrize("with_images", [False, True])
async def test_in_a_window_tool_answers_keep_their_role(tmp_path, with_images):
    engine, decode = FakeEngine(CALL), tiny_chat(HERMES).decode
    summary = {"keep_rounds": 1, "summary_tokens": 20, "summary_prompt": "Sum up."}
    conversation = conversing(engine, limits=ContextLimits("summary", max_rounds=2, **summary))
    images = (str(tmp_path / "a.png"),) if with_images else ()
    for number in range(4):
        await conversation.respond(Observation(f"page {number}", images))
        conversation.note(changed=True, invalid=False)

    if with_images:
        request, shown = engine.messages[3], engine.messages[4]
        assert [message["role"] for message in request[-2:]] == ["assistant", "user"]
        assert [message["role"] for message in shown] == ["user", "assistant", "tool"]
        assert engine.tools == [(ADD,)] * 5
    else:
        request, shown = decode(engine.contexts[3]), decode(engine.contexts[4])
        assert request.endswith("<|im_start|>user\nSum up.<|im_end|>\n<|im_start|>assistant\n")
        assert shown.count("<tool_response>") == 1 and json.dumps(ADD) in shown
        assert shown.endswith("<tool_response>\npage 3\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
