"""A line of a trajectory file is one that its readers take, whatever the episode holds."""

import asyncio
import json
import math
import re
from dataclasses import replace

import pytest

from rl_agent.rollout.trajectories import line
from rl_agent.types import Status, TokenSpan
from tests.unit.rollout.trajectories.growing_files import create, read
from tests.unit.rollout.trajectories_made import make_step, make_trajectory


async def test_numbers_that_json_cannot_hold_survive(growing):
    generation = make_step().generation
    episode = with_step(generation=replace(generation, logprobs=(-math.inf,) * len(generation.token_ids)))
    async with create(growing) as writer:
        await writer.append(episode)
    assert read(growing) == [episode]


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def with_step(**changes):
    return replace(make_trajectory(0), steps=(replace(make_step(), **changes),))


def with_text(text: object):
    return with_step(generation=replace(make_step().generation, text=text))


def with_detail(**detail):
    return replace(make_trajectory(0), reward_detail=detail)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (with_detail(judge=object()), "reward_detail.judge: a object is not JSON"),
        (with_detail(a=[1.0, math.nan]), r"reward_detail.a\[1\]: nan is not JSON"),
        (with_detail(a={1: 2}), "reward_detail.a: the key 1 is a int"),
        (with_detail(a="\ud800"), "reward_detail.a: holds half of a surrogate pair"),
        (with_detail(a=2**64), "reward_detail.a: the integer has more than 64 bits"),
        (with_detail(a=nested(205)), "reward_detail.a.*: nested deeper than 64 levels"),
        (with_text("\udfff"), "cannot be written as JSON.*surrogates not allowed"),
        (with_text(None), r"steps.0.generation.text: Input should be a valid string"),
        (with_step(reward=None), "steps.0.reward: Input should be a valid number"),
        (with_step(prompt_token_ids=(1, None)), "steps.0.prompt_token_ids.1: Input should be a valid int"),
    ],
)
async def test_an_episode_that_no_reader_could_read_is_recorded_as_failed_alone(growing, odd, message):
    others = [make_trajectory(1), make_trajectory(2)]
    async with create(growing) as writer, asyncio.TaskGroup() as group:
        jobs = [group.create_task(writer.append(episode)) for episode in (others[0], odd, others[1])]
    recorded = [job.result() for job in jobs]

    assert read(growing) == recorded
    assert recorded[::2] == others
    failed = recorded[1]
    assert (failed.key, failed.status, failed.reward) == (odd.key, Status.FAILED, None)
    assert failed.failure.kind == "UnwritableEpisode"
    assert re.search(message, failed.failure.message)
    assert failed.steps == ()


@pytest.mark.parametrize(
    "fine",
    [
        with_text("null null null"),
        with_step(prompt_token_ids=[1, 2]),
        make_trajectory(extra={"a": None, "b": [None]}),
        with_detail(a=None),
        replace(make_trajectory(0), reward=1),
    ],
)
async def test_an_episode_that_only_looks_odd_is_recorded_as_it_is(growing, fine):
    async with create(growing) as writer:
        assert await writer.append(fine) is fine
    (recorded,) = read(growing)
    assert recorded.status is Status.COMPLETED
    assert replace(recorded, steps=()) == replace(fine, steps=())


async def test_a_record_that_is_far_too_long_is_one_failed_episode(growing, monkeypatch):
    monkeypatch.setattr(line, "MAX_LINE_BYTES", 5_000)
    async with create(growing) as writer:
        failed = await writer.append(with_text("x" * 5_000))
    assert read(growing) == [failed]
    assert "more than 5,000" in failed.failure.message
    assert failed.steps == ()


def test_token_origins_are_read_back_and_older_lines_read_without_them():
    step = make_step()
    spans = (TokenSpan(1, 3, "a" * 32), TokenSpan(1, 4, "b" * 32))
    trajectory = with_step(generation=replace(step.generation, spans=spans))
    content = line.to_json(trajectory)
    assert line.TRAJECTORY.validate_json(content) == trajectory
    older = json.loads(content)
    del older["steps"][0]["generation"]["spans"]
    assert line.TRAJECTORY.validate_python(older, strict=False).steps == (step,)
