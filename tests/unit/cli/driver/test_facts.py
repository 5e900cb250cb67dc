"""Trainer and engine have the devices in turns only where there is a trainer."""

import pytest

from rl_agent.cli.driver._facts import facts
from rl_agent.engine.server import engine_argv
from rl_agent.worker.run_worker import turns_of
from tests.integration.tiny_model import make_plan

WORDS = ("trainer=grpo", "pool=elastic", "trainer.placement=colocated", "engine.device=gpu")


@pytest.mark.parametrize(("phase", "has_turns"), [("both", True), ("rollout", False)])
def test_engine_and_driver_wait_for_a_turn_only_where_a_trainer_gives_it(tmp_path, phase, has_turns):
    plan = make_plan(tmp_path / "log", tmp_path / "model", *WORDS)
    plan = plan.model_copy(update={"command": plan.command.model_copy(update={"rl_phase": phase})})

    assert (turns_of(plan) is not None) == has_turns
    assert ("--enable-sleep-mode" in engine_argv(plan, "model", "127.0.0.1", 1)) == has_turns
    assert facts(plan, {})["takes_turns"] == str(int(has_turns))
