"""An episode from its first prompt to its record: turns, limits, timeouts, and how it ends."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.engine.wire import completion_request
from rl_agent.env.math import MathEnvironment
from rl_agent.errors import EngineError, EnvironmentUnavailable, PromptTooLong, RetryLater
from rl_agent.rollout.collector import episode as episode_module
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.lengths import ResponseLengths
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.types import Failure, Status
from tests.unit.rollout.episodes import FakeEngine, FakeEnvironment, make_setup, make_spec, run_episode


class Failing(FakeEngine):
    """Raises `error` at the request of that number, counted from 1."""

    def __init__(self, error, at):
        super().__init__()
        self.error, self.at = error, at

    async def before_answer(self):
        if len(self.contexts) == self.at:
            raise self.error


async def test_an_episode_is_recorded_as_it_happened():
    environment, engine = FakeEnvironment(length=2), FakeEngine("<think>easy</think> 4")
    trajectory = await run_episode(environment, engine)

    assert trajectory.status is Status.COMPLETED
    assert (trajectory.reward, trajectory.truncated, trajectory.failure) == (1.0, False, None)
    assert environment.actions == ["4", "4"]
    assert [step.observation.text for step in trajectory.steps] == ["2+2=", "go on"]
    assert [step.generation.text for step in trajectory.steps] == ["<think>easy</think> 4"] * 2
    assert (trajectory.weight_version_min, trajectory.weight_version_max) == (5, 5)
    assert trajectory.seed == 100
    assert environment.closed == 1


async def test_an_environments_changes_to_its_task_are_not_recorded():
    class Writing(FakeEnvironment):
        async def reset(self, task, seed):
            task.extra["seen"].append(float("nan"))
            return await super().reset(task, seed)

    spec = make_spec()
    spec = replace(spec, task=replace(spec.task, extra={"seen": []}))
    for _ in range(2):
        trajectory = await Episode(spec, make_setup(Writing())).run()
        assert trajectory.task.extra == {"seen": []}


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=5))
def test_contexts_grow_by_tokens_whatever_the_model_says(responses):
    class Babbling(FakeEngine):
        def generation(self):
            ids = tuple(3 + byte for byte in responses[len(self.contexts) - 1])
            return super().generation().__class__(ids, (0.0,) * len(ids), "?", "length", 0, 0)

    engine = Babbling()
    trajectory = asyncio.run(run_episode(FakeEnvironment(length=len(responses)), engine))

    context = []
    for step, sent in zip(trajectory.steps, engine.contexts, strict=True):
        context += step.prompt_token_ids
        assert sent == context
        context += step.generation.token_ids


async def test_ten_rewards_of_a_tenth_are_a_whole_one():
    class Paying(FakeEnvironment):
        async def step(self, action):
            return replace(await super().step(action), reward=0.1)

    assert (await run_episode(Paying(length=10))).reward == 1.0


async def test_named_rewards_are_summed_by_name_and_count_by_their_weights():
    environment = FakeEnvironment(length=2, rewards={"format": 0.5, "brevity": -1.0})
    trajectory = await run_episode(environment, reward_weights={"format": 0.2, "unknown": 7.0})

    assert trajectory.rewards == {"format": 1.0, "brevity": -2.0}
    assert [step.reward for step in trajectory.steps] == pytest.approx([0.1 - 1, 1 + 0.1 - 1])
    assert trajectory.reward == pytest.approx(1 + 0.2 * 1.0 - 2.0)


class Cut(FakeEngine):
    """Every response ends at the token limit."""

    def generation(self):
        return replace(super().generation(), finish_reason="length")


@pytest.mark.parametrize("response", ["42", "To add 12 + 30, we need", "<answer>42</answer>", "\\boxed{42}"])
async def test_a_response_that_the_token_limit_cut_is_no_answer(response):
    spec = make_spec()
    task = replace(spec.task, answer="42", env="math")
    trajectory = await Episode(replace(spec, task=task), make_setup(MathEnvironment(), Cut(response))).run()

    assert (trajectory.status, trajectory.reward) == (Status.COMPLETED, 0.0)
    assert (trajectory.steps[0].generation.text, trajectory.steps[0].action) == (response, "")
    assert len(trajectory.steps) == 1
    assert trajectory.truncated


def keeping_version(engine):
    policy = make_setup(FakeEnvironment(), engine).policy
    return {"policy": replace(policy, keeps_version=True, lengths=ResponseLengths())}


@pytest.mark.parametrize("error", [None, EngineError("refused")], ids=["completed", "failed"])
async def test_turns_of_one_version_name_their_episode_and_report_its_end(error):
    engine = Failing(error, at=3 if error else 0)
    await run_episode(FakeEnvironment(length=3), engine, **keeping_version(engine))
    other = FakeEngine()
    await run_episode(FakeEnvironment(length=1), other, **keeping_version(other))

    [name] = {sampling.episode for sampling in engine.samplings}
    assert len(engine.samplings) == 3
    assert engine.ended_episodes == [name]
    assert other.ended_episodes == [other.samplings[0].episode] != [name]


async def test_a_turn_awaited_by_an_engine_goes_before_turns_that_await_one():
    """Else new requests, which wait for new weights, could hold every place until the engine gives up."""
    engine, gate = FakeEngine(), EngineGate(1)
    policy = replace(keeping_version(engine)["policy"], gate=gate)

    class Meanwhile(FakeEnvironment):
        async def step(self, action):
            if not self.actions:
                await gate.__aenter__()  # another episode's first turn
            return await super().step(action)

    trajectory = await run_episode(Meanwhile(length=3), engine, policy=policy)
    assert trajectory.status is Status.COMPLETED
    assert gate.in_use == 1


@pytest.mark.parametrize(
    "more", [{"keeps_version": False}, {"max_steps": 1}], ids=["any version", "one turn"]
)
async def test_no_episode_is_named_where_nothing_has_to_be_held_together(more):
    engine = FakeEngine()
    policy = replace(keeping_version(engine)["policy"], keeps_version=more.get("keeps_version", True))
    await run_episode(FakeEnvironment(), engine, policy=policy, max_steps=more.get("max_steps", 10))
    assert engine.samplings[0].episode == "" and engine.ended_episodes == []
    assert b"episode" not in completion_request("model", [1], engine.samplings[0], "r")


async def test_no_two_turns_or_episodes_share_a_sampling_seed():
    seeds = []
    for index in range(5):
        engine = FakeEngine()
        await Episode(make_spec(index), make_setup(FakeEnvironment(length=5), engine)).run()
        seeds += [sampling.seed for sampling in engine.samplings]

    assert len(set(seeds)) == 25


@pytest.mark.parametrize(
    ("environment", "engine", "steps"),
    [
        (FakeEnvironment(length=9), FakeEngine(), 3),
        (FakeEnvironment(length=2, truncates=True), FakeEngine(), 2),
        (FakeEnvironment(length=9), Failing(PromptTooLong("full"), at=3), 2),
    ],
    ids=["limit of the steps", "limit of the environment", "full context"],
)
async def test_a_limit_truncates_and_keeps_the_reward_so_far(environment, engine, steps):
    trajectory = await run_episode(environment, engine, max_steps=3)
    assert trajectory.status is Status.COMPLETED
    assert (len(trajectory.steps), trajectory.reward, trajectory.truncated) == (steps, 0.0, True)


@pytest.mark.parametrize(
    ("error", "at", "status"),
    [
        (PromptTooLong("full"), 1, Status.FAILED),
        (EngineError("HTTP 400"), 3, Status.FAILED),
        (TimeoutError("no answer within 240 s"), 1, Status.TIMED_OUT),
    ],
    ids=["a task that never fitted", "an engine's error", "a request's timeout"],
)
async def test_an_error_of_a_request_ends_its_episode_with_the_finished_steps(error, at, status):
    trajectory = await run_episode(FakeEnvironment(length=3), Failing(error, at=at))
    assert (trajectory.status, len(trajectory.steps)) == (status, at - 1)
    assert trajectory.failure == Failure(type(error).__name__, str(error))


@pytest.mark.parametrize(
    ("faults", "engine", "error"),
    [
        ({}, Failing(RetryLater("gone"), at=1), RetryLater),
        ({"step 1": EnvironmentUnavailable("no program")}, FakeEngine(), EnvironmentUnavailable),
    ],
    ids=["a dead engine", "an environment that cannot work here"],
)
async def test_faults_of_the_machine_are_no_outcome_of_an_episode(faults, engine, error):
    environment = FakeEnvironment(faults=faults)
    with pytest.raises(error):
        await run_episode(environment, engine)
    assert environment.closed == 1


@pytest.mark.parametrize(("call", "steps"), [("reset", 0), ("step 2", 2)])
async def test_a_slow_environment_times_its_episode_out(call, steps):
    environment = FakeEnvironment(length=3, hangs=[call])
    trajectory = await run_episode(environment, step_timeout_s=0.01)

    assert (trajectory.status, len(trajectory.steps)) == (Status.TIMED_OUT, steps)
    expected = f"the environment's {call.split()[0]} took longer than 0.01 s, rollout.step_timeout_s"
    assert trajectory.failure == Failure("TimeoutError", expected)
    assert environment.closed == 1


async def test_the_episode_timeout_bounds_everything_together():
    trajectory = await run_episode(FakeEnvironment(hangs=["step 1"]), episode_timeout_s=0.01)

    assert trajectory.failure == Failure("TimeoutError", "the episode took longer than 0.01 s")


async def test_an_abandoned_episode_keeps_its_steps():
    environment = FakeEnvironment(length=3, hangs=["step 2"])
    running = Episode(make_spec(), make_setup(environment))
    async with asyncio.TaskGroup() as jobs:
        job = jobs.create_task(running.run())
        while len(environment.actions) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        running.abandon()
        running.abandon()

    assert (job.result().status, len(job.result().steps)) == (Status.ABANDONED, 2)
    assert environment.closed == 1


async def test_an_episode_abandoned_before_it_began_makes_no_environment():
    def create(kind):
        raise AssertionError("made an environment")

    unstarted = Episode(make_spec(), make_setup(create))
    unstarted.abandon()
    assert (await unstarted.run()).status is Status.ABANDONED


async def test_an_environment_that_fails_on_cancellation_is_still_cancelled():
    class Stubborn(FakeEnvironment):
        async def step(self, action):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("how dare you") from None

    environment = Stubborn()
    async with asyncio.TaskGroup() as jobs:
        job = jobs.create_task(run_episode(environment))
        for _ in range(10):
            await asyncio.sleep(0)
        job.cancel()
    assert job.cancelled()
    assert environment.closed == 1


@pytest.mark.parametrize("fault", [{"faults": {"close": ValueError("x")}}, {"hangs": ["close"]}], ids=str)
async def test_an_environment_that_does_not_close_changes_nothing(fault, monkeypatch):
    monkeypatch.setattr(episode_module, "CLOSE_TIMEOUT_S", 0.01)
    assert (await run_episode(FakeEnvironment(**fault))).status is Status.COMPLETED


async def test_no_place_at_the_engine_is_held_while_the_environment_works():
    class Watching(FakeEnvironment):
        async def step(self, action):
            in_use.append(setup.policy.gate.in_use)
            return await super().step(action)

    in_use = []
    setup = make_setup(Watching(length=3))
    await Episode(make_spec(), setup).run()
    assert in_use == [0, 0, 0]
