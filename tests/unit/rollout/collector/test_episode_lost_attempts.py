"""An environment's error is its own failure: its episode is begun again where that helps."""

import asyncio
import logging
import re

import pytest

from rl_agent import errors
from rl_agent.errors import ConfigError, EngineError, EnvironmentFailure, EnvironmentLost, EnvironmentRefusal
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.failures import TracebackLog
from rl_agent.types import Failure, Observation, Status, StepResult
from tests.unit.rollout.episodes import FakeEngine, FakeEnvironment, make_setup, make_spec, run_episode

LOST = EnvironmentLost("worker 7: it was ended by SIGKILL", is_suspect=True)


def playing(environments, engine=None, **changes):
    """An episode that has one environment after the other; and how often each was said to have crashed."""
    left, crashes = list(environments), []

    def create(kind, crashed):
        crashes.append(crashed)
        return left.pop(0)

    setup = make_setup(None, engine, **{"attempts": 3, "create_environment": create} | changes)
    return Episode(make_spec(), setup), crashes


async def test_a_lost_environment_costs_an_attempt_and_not_the_episode():
    engine = FakeEngine()
    lost = FakeEnvironment(length=3, faults={"step 2": LOST}, rewards={"other": 5.0})
    good = FakeEnvironment(length=2, rewards={"format": 0.0})
    episode, crashes = playing([lost, good], engine)
    trajectory = await episode.run()

    assert (trajectory.status, trajectory.reward, trajectory.failure) == (Status.COMPLETED, 1.0, None)
    assert (len(trajectory.steps), trajectory.rewards) == (2, {"format": 0.0})
    (attempt,) = trajectory.lost_attempts
    assert attempt.failure == Failure("EnvironmentLost", "worker 7: it was ended by SIGKILL")
    assert attempt.steps == 2
    assert (lost.closed, good.closed, crashes) == (1, 1, [0, 1])
    assert engine.contexts[2] == engine.contexts[0]
    seeds = [sampling.seed for sampling in engine.samplings]
    assert len(set(seeds)) == len(seeds) == 4


@pytest.mark.parametrize("fault", [ValueError("oh"), EnvironmentFailure("oh"), TimeoutError("oh")])
async def test_an_environment_that_always_fails_is_given_up_with_every_reason(fault):
    environments = [FakeEnvironment(faults={"step 1": fault}) for _ in range(3)]
    trajectory = await playing(environments)[0].run()

    assert trajectory.status is Status.FAILED
    reasons = [*(lost.failure for lost in trajectory.lost_attempts), trajectory.failure]
    assert [reason.kind for reason in reasons] == ["EnvironmentFailure"] * 3
    assert all("oh" in reason.message for reason in reasons)


async def test_an_environment_that_hangs_is_begun_again():
    environments = [FakeEnvironment(hangs={"reset"}), FakeEnvironment(hangs={"step 1"}), FakeEnvironment()]
    trajectory = await playing(environments, step_timeout_s=0.05)[0].run()

    assert trajectory.status is Status.COMPLETED
    assert ["reset took" in lost.failure.message for lost in trajectory.lost_attempts] == [True, False]


class Failing(FakeEngine):
    async def before_answer(self):
        raise EngineError("503")


@pytest.mark.parametrize(
    ("fault", "engine", "kind"),
    [
        ({"faults": {"reset": EnvironmentRefusal("no page")}}, FakeEngine(), "EnvironmentRefusal"),
        ({"faults": {"reset": ConfigError("no key")}}, FakeEngine(), "EnvironmentRefusal"),
        ({}, Failing(), "EngineError"),
        ({"hangs": {"step 1"}}, FakeEngine(), "TimeoutError"),
    ],
    ids=["a refusal", "a setting", "the engine", "the limit of the episode"],
)
async def test_failures_that_would_come_again_are_not_tried_again(fault, engine, kind):
    trajectory = await playing([FakeEnvironment(**fault)], engine, episode_timeout_s=0.05)[0].run()
    assert trajectory.status is (Status.TIMED_OUT if kind == "TimeoutError" else Status.FAILED)
    assert (trajectory.failure.kind, trajectory.lost_attempts) == (kind, ())


async def test_an_abandoned_episode_is_not_begun_again():
    class Abandoning(FakeEnvironment):
        async def step(self, action):
            episode.abandon()
            raise LOST

    episode, _ = playing([Abandoning()])
    trajectory = await episode.run()

    assert trajectory.failure is not None
    assert trajectory.lost_attempts == ()


@pytest.mark.parametrize(
    "error", [ValueError("boom"), KeyError(), SystemExit(3), asyncio.CancelledError(), TimeoutError("mine")]
)
@pytest.mark.parametrize("call", ["reset", "step 1", "step 2"])
async def test_whatever_an_environment_raises_is_its_own_failure(call, error):
    environment = FakeEnvironment(length=3, faults={call: error})
    trajectory = await run_episode(environment)

    assert trajectory.status is Status.FAILED
    assert trajectory.failure.kind == "EnvironmentFailure"
    assert type(error).__name__ in trajectory.failure.message
    assert len(trajectory.steps) == {"reset": 0, "step 1": 1, "step 2": 2}[call]
    assert (trajectory.reward, environment.closed) == (None, 1)


async def test_an_environments_traceback_is_in_the_log(tmp_path):
    log = TracebackLog(tmp_path / "environments.log")
    await run_episode(FakeEnvironment(faults={"step 1": ZeroDivisionError("of a user")}), tracebacks=log)
    text = log.path.read_text()
    assert "in _meet" in text and "ZeroDivisionError: of a user" in text


async def test_an_environments_error_is_recorded_cut_and_in_writable_characters():
    error = ValueError("\ud800" + "page " * 10_000)
    message = (await run_episode(FakeEnvironment(faults={"reset": error}))).failure.message

    assert message.encode().startswith(b"reset failed: episodes.py:")
    assert b": ValueError: \\ud800page" in message.encode() and len(message) < 2100


async def test_an_environment_that_cannot_be_made_fails_its_episode():
    def create(kind):
        raise OSError("no display")

    failure = (await run_episode(create)).failure
    assert failure.kind == "EnvironmentFailure"
    assert re.fullmatch(r"could not be made: test_\w+\.py:\d+: OSError: no display", failure.message)


class Mute(FakeEnvironment):
    async def reset(self, task, seed):
        return None


@pytest.mark.parametrize(
    ("environment", "failure"),
    [
        (Mute(), Failure("EnvironmentRefusal", "reset returned NoneType, not an Observation")),
        (
            FakeEnvironment(faults={"reset": EnvironmentFailure("no browser")}),
            Failure("EnvironmentFailure", "no browser"),
        ),
    ],
    ids=["nothing is shown", "a failure by name"],
)
async def test_a_failed_reset_is_the_environments_failure(environment, failure):
    assert (await run_episode(environment)).failure == failure


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "step returned NoneType, not a StepResult"),
        (StepResult("text"), "step returned str, not an Observation"),
        (StepResult(Observation(None)), "step returned an observation that is not a text: AttributeError"),
        (
            StepResult(Observation(""), reward="much"),
            "step returned a reward that is not a number: ValueError",
        ),
    ],
)
async def test_nonsense_from_an_environment_is_its_failure_too(result, message):
    class Talking(FakeEnvironment):
        async def step(self, action):
            return result

    trajectory = await run_episode(Talking())

    assert issubclass(getattr(errors, trajectory.failure.kind), EnvironmentFailure)
    assert trajectory.failure.message.startswith(message)


async def test_an_attempt_lost_by_every_episode_is_not_logged_for_each(caplog):
    caplog.set_level(logging.INFO)
    failing = {"step 1": ValueError("no database")}
    setup = make_setup(lambda kind: FakeEnvironment(faults=failing), attempts=3)
    for index in range(10):
        await Episode(make_spec(index), setup).run()

    assert len(caplog.messages) == 4
    assert caplog.messages[-1].endswith("no database (10 attempts so far)")
