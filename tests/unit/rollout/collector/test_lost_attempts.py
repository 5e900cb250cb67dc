"""Episodes whose environment failed, not their agent, are begun again; both reasons are recorded."""

import pytest

from rl_agent.errors import ConfigError, EngineError, EnvironmentFailure, EnvironmentLost, EnvironmentRefusal
from rl_agent.rollout.collector.episode import Episode
from rl_agent.types import Failure, Status
from tests.unit.rollout.episodes import FakeEngine, FakeEnvironment, make_setup, make_spec

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
    lost, good = FakeEnvironment(length=3, faults={"step 2": LOST}), FakeEnvironment(length=2)
    episode, crashes = playing([lost, good], engine)
    trajectory = await episode.run()

    assert (trajectory.status, trajectory.reward, trajectory.failure) == (Status.COMPLETED, 1.0, None)
    assert len(trajectory.steps) == 2
    (attempt,) = trajectory.lost_attempts
    assert attempt.failure == Failure("EnvironmentLost", "worker 7: it was ended by SIGKILL")
    assert attempt.steps == 1
    assert (lost.closed, good.closed, crashes) == (1, 1, [0, 1])
    assert engine.contexts[2] == engine.contexts[0]
    seeds = [sampling.seed for sampling in engine.samplings]
    assert len(set(seeds)) == len(seeds) == 4


@pytest.mark.parametrize("fault", [ValueError("oh"), EnvironmentFailure("oh"), TimeoutError("oh")])
async def test_an_environment_that_fails_every_time_is_given_up_with_every_reason(fault):
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


@pytest.mark.parametrize("fault", [EnvironmentRefusal("no page"), ConfigError("no key")])
async def test_what_will_fail_again_is_not_tried_again(fault):
    trajectory = await playing([FakeEnvironment(faults={"reset": fault})])[0].run()

    assert (trajectory.status, trajectory.failure.kind) == (Status.FAILED, "EnvironmentRefusal")
    assert trajectory.lost_attempts == ()


async def test_what_the_engine_does_is_no_reason_to_begin_again():
    class Failing(FakeEngine):
        async def before_answer(self):
            raise EngineError("503")

    trajectory = await playing([FakeEnvironment()], Failing())[0].run()

    assert (trajectory.failure.kind, trajectory.lost_attempts) == ("EngineError", ())


async def test_the_whole_episodes_limit_is_no_reason_to_begin_again():
    environment = FakeEnvironment(hangs={"step 1"})
    trajectory = await playing([environment], episode_timeout_s=0.05)[0].run()

    assert (trajectory.status, trajectory.lost_attempts) == (Status.TIMED_OUT, ())


async def test_an_abandoned_episode_is_not_begun_again():
    class Abandoning(FakeEnvironment):
        async def step(self, action):
            episode.abandon()
            raise LOST

    episode, _ = playing([Abandoning()])
    trajectory = await episode.run()

    assert trajectory.failure is not None
    assert trajectory.lost_attempts == ()
