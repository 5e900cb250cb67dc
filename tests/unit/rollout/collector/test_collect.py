"""The collector: every episode is run and recorded once, whatever the others do."""

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from itertools import cycle

import pytest

from rl_agent.errors import JudgeOutage, RetryLater, StoreError
from rl_agent.judge.verdict import Verdict
from rl_agent.rollout.collector.collect import CollectSettings
from rl_agent.rollout.collector.stop_rule import StopRule
from rl_agent.types import Failure, Status
from tests.unit.rollout.collecting import (
    PATIENT,
    FakeSource,
    FakeWriter,
    collect,
    in_turn,
    make_collector,
    summary,
)
from tests.unit.rollout.episodes import FakeEngine, FakeEnvironment


async def test_every_episode_is_recorded_once():
    writer = FakeWriter()
    collector = make_collector(lambda kind: FakeEnvironment(length=2), writer)
    await collect(collector, 50)

    assert len({trajectory.key for trajectory in writer.trajectories}) == 50
    assert summary(collector) == "submitted=50 completed=50 failed=0 timed_out=0 abandoned=0"
    assert collector.running == {}


async def test_a_broken_environment_stops_no_other_episode():
    faults = cycle([{}, {"reset": SystemExit(1)}, {"step 1": RuntimeError("x")}])
    writer = FakeWriter()
    collector = make_collector(lambda kind: FakeEnvironment(faults=next(faults)), writer)
    await collect(collector, 50)

    assert summary(collector) == "submitted=50 completed=17 failed=33 timed_out=0 abandoned=0"
    assert writer.statuses() == {Status.COMPLETED: 17, Status.FAILED: 33}


async def test_no_more_environments_live_than_server_size_and_as_many_as_that():
    class Counted(FakeEnvironment):
        async def reset(self, task, seed):
            alive.add(self)
            most.append(len(alive))
            await asyncio.sleep(0)
            return await super().reset(task, seed)

        async def close(self):
            await super().close()
            alive.discard(self)

    alive, most = set(), []
    await collect(make_collector(lambda kind: Counted(), FakeWriter(), server_size=7), 60)
    assert max(most) == 7


async def test_a_hung_episode_holds_up_one_place_only():
    writer = FakeWriter()
    create = in_turn(FakeEnvironment(hangs=["reset"]), then=FakeEnvironment)
    collector = make_collector(create, writer, server_size=2, stop_rule=StopRule(39 / 40, 0.0))
    await collect(collector, 40)

    assert writer.trajectories[-1].status is Status.ABANDONED
    assert summary(collector) == "submitted=40 completed=39 failed=0 timed_out=0 abandoned=1"


async def test_after_the_grace_period_the_rest_is_recorded_as_abandoned(caplog):
    caplog.set_level(logging.INFO)
    writer = FakeWriter()
    create = in_turn(
        *(FakeEnvironment(length=2) for _ in range(10)),
        then=lambda: FakeEnvironment(length=2, hangs=["step 2"]),
    )
    collector = make_collector(create, writer, stop_rule=StopRule(0.5, 0.0))
    await collect(collector, 20)

    assert summary(collector) == "submitted=20 completed=10 failed=0 timed_out=0 abandoned=10"
    lengths = Counter(len(t.steps) for t in writer.trajectories if t.status is Status.ABANDONED)
    assert lengths == {2: 4, 0: 6}  # what ran was in its second step, the rest was never begun
    assert "stragglers are cut off in 0 s: 10 episodes have not ended" in caplog.text


async def test_episodes_done_before_a_resume_count_for_stop_rule_and_account():
    stuck = FakeEnvironment(hangs=["reset"])
    collector = make_collector(stuck, FakeWriter(), stop_rule=StopRule(0.9, 0.0), whole=lambda: 10)
    collector.ended[Status.FAILED] = 9
    await collect(collector, FakeSource(1))

    assert summary(collector) == "submitted=10 completed=0 failed=9 timed_out=0 abandoned=1"


async def test_a_dead_engine_ends_the_rollout_with_one_error_and_no_failures():
    class Dead(FakeEngine):
        async def before_answer(self):
            await asyncio.sleep(0)
            raise RetryLater("the engine is gone")

    writer = FakeWriter()
    collector = make_collector(lambda kind: FakeEnvironment(), writer, engine=Dead())
    with pytest.raises(RetryLater, match="the engine is gone"):
        await collect(collector, 20)

    assert writer.trajectories == []
    assert summary(collector).endswith("unrecorded=20")


async def test_a_full_disk_ends_the_rollout():
    collector = make_collector(lambda kind: FakeEnvironment(), FakeWriter(StoreError("disk full")))
    with pytest.raises(StoreError, match="disk full"):
        await collect(collector, 5)


async def test_our_own_bug_is_not_hidden():
    collector = make_collector(None, FakeWriter(), start_episode=lambda spec: 1 / 0)
    with pytest.raises(BaseExceptionGroup) as caught:
        await collect(collector, 1)
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


async def test_a_cancelled_rollout_records_nothing_half_done_and_closes_all():
    environments = []

    def create(kind):
        environments.append(FakeEnvironment(hangs=["step 1"]))
        return environments[-1]

    writer = FakeWriter()
    collector = make_collector(create, writer)
    async with asyncio.TaskGroup() as jobs:
        job = jobs.create_task(collect(collector, 20))
        for _ in range(10):
            await asyncio.sleep(0)
        job.cancel()

    assert writer.trajectories == []
    assert [environment.closed for environment in environments] == [1, 1, 1, 1]


async def test_the_judge_decides_the_reward_after_the_environment_was_closed():
    environment = FakeEnvironment()

    async def judge(trajectory):
        closed.append(environment.closed)
        return Verdict(0.25, {"why": "half right"})

    closed, writer = [], FakeWriter()
    await collect(make_collector(environment, writer, judge=judge), 1)

    assert closed == [1]
    assert writer.trajectories[0].reward == 0.25
    assert writer.trajectories[0].reward_detail == {"why": "half right"}


async def test_a_slow_judge_does_not_hold_places():
    async def judge(trajectory):
        waiting.append(trajectory)
        if len(waiting) == 12:
            everyone.set()
        await everyone.wait()
        return Verdict(1.0)

    waiting, everyone = [], asyncio.Event()
    collector = make_collector(lambda kind: FakeEnvironment(), FakeWriter(), server_size=1, judge=judge)
    collector._settings = CollectSettings(1, PATIENT, judge_timeout_s=5.0)
    await collect(collector, 12)

    assert collector.ended == {Status.COMPLETED: 12}


async def outage(trajectory):
    raise JudgeOutage("no key")


async def silence(trajectory):
    await asyncio.Event().wait()


@pytest.mark.parametrize(("judge", "message"), [(outage, "no key"), (silence, "no verdict within 0.05 s")])
async def test_an_outage_of_the_judge_is_a_failure_and_no_reward(judge, message):
    writer = FakeWriter()
    await collect(make_collector(FakeEnvironment(), writer, judge=judge), 1)

    (trajectory,) = writer.trajectories
    assert (trajectory.status, trajectory.reward) == (Status.FAILED, None)
    assert (trajectory.failure.kind, trajectory.failure.message) == ("JudgeOutage", message)
    assert len(trajectory.steps) == 1


async def test_an_episode_that_could_not_be_written_counts_as_recorded():
    class Refusing(FakeWriter):
        async def append(self, trajectory):
            failure = Failure("UnwritableEpisode", "reward_detail.a: nan is not JSON")
            failed = replace(trajectory, status=Status.FAILED, reward=None, failure=failure)
            return await super().append(failed)

    recorded, writer = [], Refusing()
    collector = make_collector(lambda kind: FakeEnvironment(), writer, on_recorded=recorded.append)
    await collect(collector, 3)

    assert recorded == writer.trajectories
    assert summary(collector) == "submitted=3 completed=0 failed=3 timed_out=0 abandoned=0"


async def test_only_completed_episodes_are_judged():
    writer = FakeWriter()
    environment = FakeEnvironment(faults={"step 1": ValueError("x")})
    await collect(make_collector(environment, writer, judge=outage), 1)

    assert writer.trajectories[0].failure.kind == "EnvironmentFailure"


async def test_nothing_is_counted_before_it_is_durable():
    class Checking(FakeWriter):
        async def append(self, trajectory):
            counted_before.append(collector.done - len(self.trajectories))
            return await super().append(trajectory)

    counted_before, recorded, writer = [], [], Checking()
    collector = make_collector(lambda kind: FakeEnvironment(), writer, on_recorded=recorded.append)
    await collect(collector, 20)

    assert max(counted_before) <= 0
    assert recorded == writer.trajectories


async def test_an_empty_sample_is_collected_at_once(caplog):
    caplog.set_level(logging.INFO)
    collector = make_collector(FakeEnvironment(), FakeWriter())
    await collect(collector, 0)

    assert summary(collector) == "submitted=0 completed=0 failed=0 timed_out=0 abandoned=0"
    assert caplog.text == ""
