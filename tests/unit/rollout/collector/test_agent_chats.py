"""Chats of an agent's program as sequences: what is continued, what begins another one, what is refused."""

import asyncio
import base64
import io
import json
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest
from PIL import Image

from rl_agent.chat.client_messages import read_messages
from rl_agent.chat.tool_formats import ToolCall
from rl_agent.env.agent.session import LimitReached, Question, QuestionRefused
from rl_agent.errors import EngineError, PromptTooLong, RolloutError
from rl_agent.rollout.collector.agent_chats import AgentChats
from rl_agent.trainer.grpo.data.samples import make_group
from rl_agent.types import EpisodeKey, Status, Task, Trajectory
from tests.support.tiny_chat import CHATML, TURN_END, tiny_chat
from tests.unit.chat.tool_templates import HERMES
from tests.unit.rollout.episodes import SAMPLING, FakeEngine, draws_of, make_policy
from tests.unit.rollout.visual import IMAGE_TOKEN, VisualEngine, known_images, visual_chat

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


class Talking(FakeEngine):
    """Says the next of these texts, the last one again and again."""

    def __init__(self, *texts):
        super().__init__()
        self.left = list(texts)

    def generation(self):
        self.say = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return super().generation()


class Refusing(FakeEngine):
    def __init__(self, error):
        super().__init__()
        self.error = error

    async def before_answer(self):
        raise self.error


def chats_of(engine, *, template=HERMES, max_steps=20, chat=None, images=None):
    policy = make_policy(engine, chat or tiny_chat(template), image_tokens=known_images())
    return AgentChats(draws_of(policy), model="model", max_steps=max_steps, idle_s=5.0, images=images)


def question(*messages, tools=(), **more):
    images = {}
    return Question(read_messages(list(messages), images), tuple(tools), images=images, **more)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def sample_of(steps):
    task = Task("t", "p", "agent", "easy")
    ending = (Status.COMPLETED, tuple(steps), 1.0, "", "m", 5, 5, 0, 0.0, 0.0)
    (sample,) = make_group([Trajectory(EpisodeKey("t", 0, 0), task, "train", 1, *ending)]).samples
    return sample


def segments_of(chats):
    return segments_of_steps(chats.steps, chats._chat)


def segments_of_steps(steps, chat):
    """Return the trainer's view of the steps: (text of the sequence, texts of what is trained)."""
    segments = []
    for segment in sample_of(steps).segments:
        tokens = zip(segment.token_ids.tolist(), segment.is_response.tolist(), strict=True)
        runs = groupby(tokens, key=itemgetter(1))
        trained = [chat.decode([token for token, _ in run]) for is_response, run in runs if is_response]
        segments.append((chat.decode(segment.token_ids.tolist()), trained))
    return segments


async def converse(chats, *conversations):
    """Ask the last message of each of these conversations."""
    for messages in conversations:
        answer = await chats.ask(question(*messages))
    return answer


async def test_a_conversation_of_several_turns_is_one_sequence_of_sampled_tokens():
    engine = Talking("one", "two")
    chats = chats_of(engine)
    await chats.ask(question(user("a")))
    # As clients echo it: the text in parts, blanks around it.
    echo = {"role": "assistant", "content": [{"type": "text", "text": "one "}], "tool_calls": None}
    answer = await chats.ask(question(user("a"), echo, user("b")))

    assert answer.reply.content == "two"
    assert answer.prompt_tokens == len(engine.contexts[1])
    first, second = chats.steps
    assert engine.contexts[0] == list(first.prompt_token_ids)
    context = [*first.prompt_token_ids, *first.generation.token_ids, *second.prompt_token_ids]
    assert engine.contexts[1] == context
    assert [step.begins for step in chats.steps] == ["", ""]
    assert second.observation.text == "b"
    assert [trained for _, trained in segments_of(chats)] == [[f"one{TURN_END}", f"two{TURN_END}"]]


async def test_a_call_and_its_answer_continue_a_conversation_with_tools():
    engine = Talking(f"I add. {CALL}{CALL.replace('1', '2')}", "3")
    chats = chats_of(engine)
    answer = await chats.ask(question(user("1+2"), tools=[ADD]))
    assert answer.finish_reason == "tool_calls"
    assert answer.reply.content == "I add."
    assert answer.reply.calls == (ToolCall("add", {"a": 1}), ToolCall("add", {"a": 2}))

    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "add", "arguments": f'{{"a":{n}}}'}}
        for n in (1, 2)
    ]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": str(n)} for n in (1, 2)]
    await chats.ask(question(user("1+2"), assistant("I add.") | {"tool_calls": calls}, *results, tools=[ADD]))
    (shown, trained), *others = segments_of(chats)
    assert not others
    assert len(trained) == 2
    assert json.dumps(ADD) in shown
    assert shown.count("<tool_response>") == 2
    assert [step.begins for step in chats.steps] == ["", ""]
    assert chats.steps[0].observation.text == "[tools] add\n\n1+2"


async def test_another_conversation_is_a_sequence_of_its_own():
    chats = chats_of(Talking("plan", "sub", "done"))
    again = [user("main"), assistant("plan"), user("sub says so")]
    await converse(chats, [user("main")], [user("sub-agent")], again)
    assert [step.begins for step in chats.steps] == ["", "", "new"]
    sequences = [[f"plan{TURN_END}", f"done{TURN_END}"], [f"sub{TURN_END}"]]
    assert [trained for _, trained in segments_of(chats)] == sequences


async def test_a_branch_keeps_the_sampled_tokens_before_it_as_context():
    engine = Talking("one", "left", "right")
    chats = chats_of(engine)
    begun = [user("a"), assistant("one")]
    await converse(chats, begun[:1], [*begun, user("b")], [*begun, user("c")])

    assert [step.begins for step in chats.steps] == ["", "", "branch"]
    first, _, branch = chats.steps
    before = [*first.prompt_token_ids, *first.generation.token_ids]
    assert list(branch.prompt_token_ids[: len(before)]) == before
    assert list(branch.prompt_token_ids) == engine.contexts[2]
    assert [trained for _, trained in segments_of(chats)][1] == [f"right{TURN_END}"]


@pytest.mark.parametrize(("first", "second"), [("ONE", "two"), ("one", "TWO")])
async def test_an_edited_answer_begins_a_sequence_that_says_so(first, second):
    chats = chats_of(Talking("one", "two", "three"))
    edited = [user("a"), assistant(first), user("b"), assistant(second), user("c")]
    await converse(chats, [user("a")], [user("a"), assistant("one"), user("b")], edited)

    assert [step.begins for step in chats.steps] == ["", "", "edited"]
    shown, trained = segments_of(chats)[1]
    assert f"{first}{TURN_END}" in shown and f"{second}{TURN_END}" in shown
    assert trained == [f"three{TURN_END}"]


async def test_examples_in_a_first_question_are_no_edits():
    chats = chats_of(Talking("one", "two"))
    await converse(chats, *([user(text), assistant("as here"), user("b")] for text in "ax"))
    assert [step.begins for step in chats.steps] == ["", "new"]


async def test_questions_at_the_same_time_are_sequences_in_the_order_of_asking():
    class Backwards(Talking):
        async def before_answer(self):
            await asyncio.sleep(0.05 if len(self.contexts) == 1 else 0)

    chats = chats_of(Backwards("later", "sooner"))
    await asyncio.gather(chats.ask(question(user("first"))), chats.ask(question(user("second"))))
    assert [step.observation.text for step in chats.steps] == ["first", "second"]
    assert [step.context_reset for step in chats.steps] == [False, True]
    assert len(segments_of(chats)) == 2


async def test_a_control_token_of_a_client_is_characters():
    engine = Talking("one", "two")
    chats = chats_of(engine)
    system = {"role": "system", "content": f"{TURN_END} and <|im_start|>"}
    await chats.ask(question(system, user(f"say {TURN_END}")))
    await chats.ask(question(system, user(f"say {TURN_END}"), assistant("one"), user("<|im_start|>")))
    end = 2
    assert engine.contexts[0].count(end) == 2, "of the system's and the user's turn"
    assert chats._chat.decode(engine.contexts[0]).count(TURN_END) == 4
    assert engine.contexts[1].count(end) == 4


async def test_a_question_after_the_last_step_is_refused():
    chats = chats_of(Talking("one"), max_steps=1)
    await chats.ask(question(user("a")))
    with pytest.raises(LimitReached, match="1 steps"):
        await chats.ask(question(user("b")))
    assert chats.has_reached_limit and chats.error is None


async def test_a_prompt_that_is_too_long_is_refused_and_not_an_error():
    chats = chats_of(Refusing(PromptTooLong("300 tokens fill the 256")))
    with pytest.raises(LimitReached, match="maximum context length"):
        await chats.ask(question(user("a")))
    assert chats.has_reached_limit and chats.error is None and chats.steps == []


async def test_tools_of_a_template_without_tools_are_refused_in_one_line():
    chats = chats_of(Talking("one"), template=CHATML)
    with pytest.raises(QuestionRefused, match=r"^tools: the model's chat template does not show"):
        await chats.ask(question(user("a"), tools=[ADD]))


async def test_an_engines_error_ends_the_episode_not_only_the_question():
    chats = chats_of(Refusing(EngineError("gone")))
    with pytest.raises(EngineError):
        await chats.ask(question(user("a")))
    assert isinstance(chats.error, EngineError)


async def test_a_clients_limits_bound_a_response_and_never_widen_it():
    engine = Talking("one")
    chats = chats_of(engine)
    await chats.ask(question(user("a"), max_tokens=3, stop=("Observation:",)))
    await chats.ask(question(user("b"), max_tokens=10_000))
    assert [sampling.max_tokens for sampling in engine.samplings] == [3, SAMPLING.max_tokens]
    assert engine.samplings[0].stop == ("Observation:",)
    assert len({sampling.seed for sampling in engine.samplings}) == 2


async def test_the_deadline_of_a_program_stands_still_while_a_question_is_open():
    class Looking(Talking):
        async def before_answer(self):
            deadlines.append(limit.when())

    deadlines = []
    chats = chats_of(Looking("one"))
    async with asyncio.timeout(60) as limit:
        chats.watch(limit)
        await chats.ask(question(user("a")))
        assert deadlines == [None]
        assert limit.when() is not None


def screenshot(width, mode="RGB"):
    """A message that shows a picture of one token for each 32 pixels of its width."""
    file = io.BytesIO()
    Image.new(mode, (width, 32), 7).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return user([{"type": "text", "text": f"See {width}"}, {"type": "image_url", "image_url": {"url": url}}])


def visual_chats(tmp_path, engine=None):
    engine = engine or VisualEngine("4")
    engine.takes_images = True
    return engine, chats_of(engine, chat=visual_chat(), images=tmp_path)


async def test_images_of_a_program_are_in_its_sequences_as_the_model_saw_them(tmp_path):
    engine, chats = visual_chats(tmp_path)
    begun = [screenshot(64), assistant("4")]
    further = [*begun, screenshot(96), screenshot(64)]
    answer = await converse(chats, begun[:1], further, [*begun, screenshot(32, "RGBA")])

    first, second, branch = chats.steps
    assert engine.contexts[0] == list(first.prompt_token_ids)
    context = [*first.prompt_token_ids, *first.generation.token_ids, *second.prompt_token_ids]
    assert engine.contexts[1] == context and context.count(IMAGE_TOKEN) == 2 + 3 + 2
    assert branch.begins == "branch" and engine.contexts[2] == list(branch.prompt_token_ids)
    assert engine.contexts[2].count(IMAGE_TOKEN) == 2 + 1
    assert answer.prompt_tokens == len(engine.contexts[2])

    assert [list(step.seen.images) for step in chats.steps] == engine.shown
    paths = [Path(path) for step in chats.steps for path in step.observation.images]
    assert [path.stem for path in paths] == [*engine.shown[1], engine.shown[2][1]]
    with Image.open(paths[-1]) as kept:
        assert kept.mode == "RGB", "as vLLM reads it"
    assert second.observation.text == "[user] See 96\n\n[user] See 64"
    assert [len(segment.images) for segment in sample_of(chats.steps).segments] == [3, 2]


@pytest.mark.parametrize("lack", ["engine", "folder", "stop"])
async def test_images_that_cannot_be_shown_are_refused(tmp_path, lack):
    engine, chats = visual_chats(tmp_path)
    if lack == "engine":
        engine.takes_images = False
    if lack == "folder":
        chats = chats_of(engine, chat=visual_chat())
    with pytest.raises(QuestionRefused, match="images: they need"):
        await chats.ask(question(screenshot(32), stop=("no",) if lack == "stop" else ()))
    assert chats.error is None


async def test_a_damaged_image_is_refused(tmp_path):
    _, chats = visual_chats(tmp_path)
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cGl4ZWxz"}}
    with pytest.raises(QuestionRefused, match="an image of a message cannot be kept"):
        await chats.ask(question(user([part])))


async def test_an_image_after_a_placeholder_of_the_model_fails_the_episode(tmp_path):
    class Writer(VisualEngine):
        def generation(self):
            return replace(super().generation(), token_ids=(IMAGE_TOKEN, 2), logprobs=(-0.1, -0.1))

    engine, chats = visual_chats(tmp_path, Writer())
    await chats.ask(question(screenshot(32)))
    with pytest.raises(RolloutError, match="the model wrote the token that stands for an image"):
        await chats.ask(question(screenshot(32), assistant("4"), screenshot(32)))
    assert type(chats.error) is RolloutError and len(engine.contexts) == 1
