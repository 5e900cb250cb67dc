"""The caller's half of a connection, with a host of bytes."""

import asyncio

import msgspec
import pytest

from rl_agent.env.remote import wire
from rl_agent.env.remote.caller import Caller
from rl_agent.errors import EnvironmentFailure, EnvironmentLost


def calling(answer=lambda question: None):
    """A caller, what it has sent, and its clock; `answer` makes the frames that come back."""
    sent, now = [], [0.0]

    def send(frame):
        question = wire.read_question(frame)
        sent.append(question)
        for reply in answer(question) or ():
            asyncio.get_running_loop().call_soon(caller.receive, reply)

    caller = Caller("server", send, clock=lambda: now[0])
    return caller, sent, now


def act(call):
    return wire.Act(call, 1, "go")


def stepped(call, text="ok"):
    return wire.encode(wire.Stepped(call, wire.Seen(text), 1.0, True, False, True, False))


async def test_answers_reach_the_calls_that_they_are_for():
    held = []

    def answer(question):
        held.append(question.call)
        return [stepped(call, str(call)) for call in reversed(held)] if len(held) == 3 else None

    caller, _, _ = calling(answer)
    results = await asyncio.gather(*(caller.ask(act) for _ in range(3)))
    assert [result.seen.text for result in results] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "lie",
    [
        lambda question: b"junk",
        lambda question: wire.encode(wire.Closed(question.call)),
        lambda question: wire.encode(wire.Shown(question.call, wire.Seen("x"))),
        lambda question: msgspec.msgpack.encode(["Stepped", question.call, "no", 1, 1, 1, 1, 1]),
    ],
)
async def test_a_host_that_lies_is_lost_with_all_that_waits(lie):
    caller, _, _ = calling(lambda question: [lie(question)] if question.call == 1 else None)
    waiting = asyncio.ensure_future(caller.ask(act))
    await asyncio.sleep(0)
    with pytest.raises(EnvironmentLost):
        await caller.ask(act)
    with pytest.raises(EnvironmentLost, match="server: "):
        await waiting
    with pytest.raises(EnvironmentLost):
        await caller.ask(act)


async def test_answers_to_calls_that_nobody_made_are_left_alone():
    caller, _, _ = calling(lambda question: [stepped(77), stepped(question.call), stepped(question.call)])
    await caller.ask(act)
    await asyncio.sleep(0)
    assert caller.lost is None


async def test_the_host_is_told_of_a_call_that_was_given_up():
    caller, sent, _ = calling()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await caller.ask(act)
    assert sent[-1] == wire.Cancel(0)
    caller.receive(stepped(0))
    assert caller.lost is None


async def test_a_failure_is_raised_where_the_call_was_made():
    failed = wire.failed_of(0, EnvironmentFailure("oh"))
    caller, sent, _ = calling(lambda question: [wire.encode(failed)])
    with pytest.raises(EnvironmentFailure, match="oh"):
        await caller.ask(act)
    assert len(sent) == 1


def test_silence_is_what_a_ping_waits_for_while_nothing_comes():
    caller, _, now = calling()
    now[0] = 100.0
    assert caller.silent_s == 0
    caller.ping()
    now[0] = 103.0
    caller.ping()
    assert caller.silent_s == 3
    caller.excuse()
    assert caller.silent_s == 0
    now[0] = 105.0
    assert caller.silent_s == 2
    caller.receive(wire.encode(wire.Pong()))
    assert caller.silent_s == 0
