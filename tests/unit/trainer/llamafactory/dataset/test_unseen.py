"""A run of updates alone ends when nothing new came, and says beforehand what it will do."""

import pytest

from rl_agent.cli.driver import next as verb
from rl_agent.config.plan import Plan
from rl_agent.served_model.versions import Published, write_record
from rl_agent.trainer.llamafactory.dataset.unseen import has_ended, outlook, unseen_iterations
from tests.integration.tiny_model import make_plan


@pytest.fixture
def updates(tmp_path):
    def make(*, max_iterations: int | None = None, rl_phase: str = "update") -> Plan:
        plan = make_plan(tmp_path / "log", tmp_path / "base", "trainer.recent_iterations=3")
        words = {"rl_phase": rl_phase, "eval_interval": None, "max_iterations": max_iterations}
        return plan.model_copy(update={"command": plan.command.model_copy(update=words)})

    return make


def collect(plan: Plan, *iterations: int) -> None:
    for iteration in iterations:
        shard = plan.paths.shard("train", iteration)
        shard.parent.mkdir(parents=True, exist_ok=True)
        shard.touch()


def publish(plan: Plan, version: int, *, iteration: int, trained_on: tuple[int, ...]) -> None:
    folder = plan.paths.version_dir(version)
    folder.mkdir(parents=True)
    record = Published(
        weight_version=version,
        previous=None,
        run_id="an-earlier-run",
        iteration=iteration,
        learning_rate=1e-4,
        samples=8,
        update_steps=2,
        created_at=0.0,
        trained_on=trained_on,
    )
    write_record(folder, record)
    plan.paths.model_link.unlink(missing_ok=True)
    plan.paths.model_link.symlink_to(f"checkpoints/{folder.name}")


def next_phase(plan: Plan, capsys) -> tuple[str, str]:
    path = plan.paths.log_path / "plan.json"
    plan.write(path)
    fields = verb.main(["--plan", str(path)]).fields
    return str(fields.get("phase", "")), capsys.readouterr().err.strip()


def test_updates_end_when_every_iteration_was_read_and_resume_at_a_new_one(updates, capsys):
    plan = updates()
    collect(plan, 1, 2, 3, 4)
    assert unseen_iterations(plan) == [2, 3, 4]
    assert next_phase(plan, capsys) == ("update", "")
    publish(plan, 1, iteration=4, trained_on=(2, 3, 4))
    assert next_phase(plan, capsys) == (
        "",
        "nothing new to train on: the served model was trained on training iterations 2 to 4 already;"
        " collect more, or --max-iterations N for N updates of the same",
    )
    collect(plan, 5)
    assert unseen_iterations(plan) == [5]
    assert next_phase(plan, capsys)[0] == "update"


def test_a_number_of_updates_that_was_asked_for_is_made_of_the_same(updates, capsys):
    plan = updates(max_iterations=2)
    collect(plan, 1)
    publish(plan, 1, iteration=1, trained_on=(1,))
    assert next_phase(plan, capsys) == ("update", "")


def test_other_phases_do_not_end_for_it(updates):
    plan = updates(rl_phase="rollout")
    collect(plan, 1)
    publish(plan, 1, iteration=1, trained_on=(1,))
    assert not has_ended(plan)


def test_updates_may_be_ahead_of_the_iterations_they_read(updates):
    plan = updates()
    collect(plan, 1, 2)
    publish(plan, 7, iteration=7, trained_on=(1, 2))
    assert unseen_iterations(plan) == []
    collect(plan, 3)  # a rollout alone counts on from its own
    assert unseen_iterations(plan) == [3]


def test_a_version_without_its_training_iterations_counts_for_its_own(updates):
    plan = updates()
    collect(plan, 1, 2, 3)
    publish(plan, 1, iteration=2, trained_on=())
    assert unseen_iterations(plan) == [3]


OUTLOOKS = {
    "what is new": (
        ((1, 2, 3, 4), (), None),
        "update: one on steps drawn from training iterations 2 to 4, then the end unless more are finished by"
        " then; --max-iterations N makes N updates of them",
    ),
    "so many": (
        ((1, 3), (), 2),
        "update: 2 updates, each on steps drawn from training iterations 1, 3; --max-iterations 2 ends it",
    ),
    "one more": (
        ((2,), (2,), 1),
        "update: one update on steps drawn from training iteration 2; --max-iterations 1 ends it",
    ),
    "nothing new": (
        ((2,), (2,), None),
        "update: nothing new to train on: the served model was trained on training iteration 2 already;",
    ),
    "nothing at all": (((), (), None), "update: no training iteration is finished in "),
}


@pytest.mark.parametrize(("state", "line"), OUTLOOKS.values(), ids=OUTLOOKS)
def test_the_outlook_and_the_end_are_reported_at_the_start(updates, state, line):
    collected, trained_on, max_iterations = state
    plan = updates(max_iterations=max_iterations)
    collect(plan, *collected)
    if trained_on:
        publish(plan, 1, iteration=9, trained_on=trained_on)
    assert outlook(plan).startswith(line) and "\n" not in outlook(plan)
