"""A rollout begins while the tail of the present one runs, if it may, and from when on."""

import asyncio
from types import SimpleNamespace

import pytest

from rl_agent.cli.driver import rollout
from rl_agent.cluster.member.member import Member
from rl_agent.rollout.sample import Assignment
from rl_agent.types import EpisodeCounts
from tests.support.rollout_setup import make_plan
from tests.unit.cli.driver.test_await_version import publish

STALE = ("trainer=grpo", "rollout.group_size=2", "trainer.batch.max_staleness=1")
TURNS = (*STALE, "trainer.placement=colocated")


def streaming(tmp_path, *words, **changes):
    plan = make_plan(tmp_path, *words, engine_url="http://127.0.0.1:1", model=tmp_path)
    usual = {"rl_phase": "both", "rollout_split": None, "max_iterations": 4}
    return plan.model_copy(update={"command": plan.command.model_copy(update=usual | changes)})


async def test_the_next_rollout_may_begin_once_its_oldest_version_is_published(tmp_path):
    plan = streaming(tmp_path, *STALE)
    publish(plan, 0, 0)
    present = Assignment(plan, "train", 2, resume=False)
    waiting = asyncio.ensure_future(rollout.next_of(present))
    await asyncio.sleep(0.05)
    assert not waiting.done(), "iteration 3 may use what iteration 1 made, which is not there yet"
    publish(plan, 1, 5)
    following = await waiting
    assert (following.iteration, following.min_weight_version) == (3, 5)
    assert following.resume and not following.resume_must_exist


async def test_the_next_rollout_may_begin_before_the_evaluation_in_between(tmp_path):
    plan = streaming(tmp_path, *STALE, eval_interval=2)
    publish(plan, 1, 1)
    following = await rollout.next_of(Assignment(plan, "train", 2, resume=False))
    assert (following.split, following.iteration) == ("train", 3)


async def test_the_rollout_of_an_evaluation_s_iteration_may_begin_in_its_tail(tmp_path):
    plan = streaming(tmp_path, *STALE, eval_interval=2)
    publish(plan, 2, 2)
    following = await rollout.next_of(Assignment(plan, "test", 3, resume=False))
    assert (following.split, following.iteration) == ("train", 3)
    assert await rollout.next_of(Assignment(plan, "test", 5, resume=False)) is None, "the run has four"


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (STALE, {"max_iterations": 2}),
        (STALE, {"rl_phase": "rollout", "rollout_split": "train-only"}),
        (("trainer=grpo", "rollout.group_size=2"), {}),
        (TURNS, {}),
        ((), {}),
    ],
    ids=["the last", "nothing is trained", "no staleness", "turns on one GPU", "no streaming"],
)
async def test_no_rollout_begins_early(tmp_path, words, changes):
    plan = streaming(tmp_path, *words, **changes)
    if words:
        publish(plan, 9, 9)
    assert await rollout.next_of(Assignment(plan, "train", 2, resume=False)) is None


def test_a_node_that_was_left_no_episode_prints_no_account(tmp_path, capsys):
    plan, file = streaming(tmp_path, *STALE), tmp_path / "plan.json"
    plan.write(file)
    rollouts = SimpleNamespace(run=lambda assignment, member: (EpisodeCounts(0, {}), 0))
    words = ["--plan", str(file), "--iteration", "2", "--split", "train"]
    assert rollout.main(words, Member.alone(plan), rollouts) == 0
    assert capsys.readouterr().out == ""
