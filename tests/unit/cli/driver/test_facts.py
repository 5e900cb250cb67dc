"""Trainer and engine have the devices in turns only where there is a trainer."""

import pytest

from rl_agent.cli.driver._facts import facts
from rl_agent.engine.server import engine_argv
from rl_agent.worker.run_worker import turns_of
from tests.integration.tiny_model import make_plan

WORDS = ("trainer=grpo", "pool=elastic", "trainer.placement=colocated", "engine.device=gpu")


def plan_of(tmp_path, phase):
    plan = make_plan(tmp_path / "log", tmp_path / "model", *WORDS)
    return plan.model_copy(update={"command": plan.command.model_copy(update={"rl_phase": phase})})


@pytest.mark.parametrize(("phase", "has_turns"), [("both", True), ("rollout", False)])
def test_an_engine_waits_for_its_turn_only_where_a_trainer_gives_it_one(tmp_path, phase, has_turns):
    plan = plan_of(tmp_path, phase)

    assert (turns_of(plan) is not None) == has_turns
    assert ("--enable-sleep-mode" in engine_argv(plan, "model", "127.0.0.1", 1)) == has_turns


@pytest.mark.parametrize(("phase", "takes_turns"), [("both", "1"), ("rollout", "0")])
def test_the_driver_waits_for_a_trainers_version_only_where_there_is_one(tmp_path, phase, takes_turns):
    assert facts(plan_of(tmp_path, phase), {})["takes_turns"] == takes_turns
