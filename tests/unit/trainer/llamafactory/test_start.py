"""An interrupted training goes on from its last checkpoint, on as many nodes as there are then."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver import publish as publish_verb
from rl_agent.cli.driver import train as train_verb
from rl_agent.config.plan import Plan
from rl_agent.paths import CONFIG_DIR
from rl_agent.served_model.versions import TRAINER, Published, switch, write_record
from rl_agent.trainer.llamafactory.inputs import read_summary
from rl_agent.trainer.llamafactory.optimizer.checkpoints import STATE
from rl_agent.trainer.llamafactory.prepare import prepare
from tests.integration.tiny_model import make_plan
from tests.unit.rollout.trajectories_made import make_header, make_step, make_trajectory, write_shard
from tests.unit.safetensors_files import value_of, write_checkpoint, write_model
from tests.unit.trainer.llamafactory.optimizer.optimizer_states import write_optimizer_state

SETTINGS = (
    "trainer.use_cpu=false",  # where every number of processes can restore the optimizer's state
    "trainer.per_device_train_batch_size=2",
    "trainer.num_train_epochs=10",
    "trainer.learning_rate=0.001",
)
"""12 samples: 60 steps on one node, 30 on two, 20 on three."""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    plan = make_plan(tmp_path / "log", write_model(tmp_path / "base"), *SETTINGS)
    collect(plan, 12)
    return plan


def collect(plan: Plan, count: int) -> None:
    episodes = [make_trajectory(i, steps=(make_step(f"{i}<|im_end|>"),)) for i in range(count)]
    write_shard(plan.paths.shard("train", 1), make_header(1), *episodes)


def interrupt(plan: Plan, step: int, *, value: float = 0.75, **extra: np.ndarray) -> Path:
    """The training of iteration 1 ends here; its last checkpoint holds `value` in all weights."""
    folder = write_checkpoint(plan.paths.training_dir(1), step, value=value, **extra)
    write_optimizer_state(folder)
    set_step(folder, step)
    return folder


def set_step(folder: Path, step: int) -> None:
    state = json.loads((folder / STATE).read_bytes())
    (folder / STATE).write_text(json.dumps(state | {"global_step": step}))


def arguments_of(path: Path | None) -> dict:
    assert path is not None
    return yaml.safe_load(path.read_text())


def resumed_step(arguments: dict) -> int | None:
    """The step from which Trainer counts; None if it starts with fresh moments."""
    if "resume_from_checkpoint" not in arguments:
        return None
    return json.loads((Path(arguments["resume_from_checkpoint"]) / STATE).read_bytes())["global_step"]


def test_it_goes_on_with_the_weights_and_the_step_of_its_last_checkpoint(plan, caplog):
    caplog.set_level("INFO")
    prepare(plan, 1)
    interrupt(plan, 25, value=0.5)
    interrupt(plan, 45)

    arguments = arguments_of(prepare(plan, 1))

    assert resumed_step(arguments) == 45
    assert arguments["max_steps"] == 60
    assert arguments["ignore_data_skip"] is True
    assert value_of(Path(arguments["resume_from_checkpoint"])) == 0.75
    assert not plan.paths.training_dir(1).exists()
    assert "the interrupted training continues after step 45 of 60" in caplog.text
    summary = read_summary(plan.paths.update_dir(1))
    assert (summary.steps_before, summary.first_step, summary.new_steps) == (0, 0, 60)


@pytest.mark.parametrize(
    ("before", "at", "nodes", "step", "last"), [(1, 30, 2, 15, 30), (1, 30, 3, 10, 20), (3, 5, 1, 15, 60)]
)
def test_on_another_number_of_nodes_the_same_share_is_left(plan, before, at, nodes, step, last):
    prepare(plan, 1, before)
    interrupt(plan, at)
    arguments = arguments_of(prepare(plan, 1, nodes))
    assert (resumed_step(arguments), arguments["max_steps"]) == (step, last)


def test_interrupted_again_before_its_next_checkpoint_it_loses_nothing(plan):
    prepare(plan, 1)
    interrupt(plan, 30)
    for nodes, step in ((2, 15), (3, 10), (1, 30)):
        arguments = arguments_of(prepare(plan, 1, nodes))
        assert resumed_step(arguments) == step
        assert value_of(Path(arguments["resume_from_checkpoint"])) == 0.75
        plan.paths.training_dir(1).mkdir()  # the next training began, and saved nothing


def test_it_counts_on_behind_the_updates_before(plan):
    serve(plan, global_step=8)
    assert resumed_step(arguments_of(prepare(plan, 1))) == 8
    interrupt(plan, 8 + 20)
    arguments = arguments_of(prepare(plan, 1, 2))
    assert (resumed_step(arguments), arguments["max_steps"]) == (8 + 10, 8 + 30)
    summary = read_summary(plan.paths.update_dir(1))
    assert (summary.steps_before, summary.first_step, summary.new_steps) == (8, 8, 30)


def serve(plan: Plan, *, global_step: int) -> None:
    """Publish a version whose optimizer is that many steps in."""
    folder = write_model(plan.paths.version_dir(1), value=0.25)
    write_optimizer_state(write_model(folder / TRAINER, value=0.25))
    set_step(folder / TRAINER, global_step)
    write_record(folder, Published(1, None, "run", 0, 1e-3, 5, global_step, 1.0))
    switch(plan.paths, folder)


def test_a_training_that_came_to_its_end_is_only_published(plan, caplog):
    caplog.set_level("INFO")
    plan_file = plan.paths.log_path / "plan.json"
    plan.write(plan_file)
    prepare(plan, 1)
    trained = interrupt(plan, 60)

    prepare(plan, 1, 2)

    assert "the training had reached its end: only publishing is left" in caplog.text
    words = ["--plan", str(plan_file), "--iteration", "1"]
    place = ["--nodes", "2", "--node-rank", "1", "--master", "10.0.0.1:29500"]
    assert train_verb.main([*words, *place]) == 0  # and starts nothing: it would replace this process
    assert trained.exists()
    published = publish_verb.main(words)
    assert published == VerbResult({"path": str(plan.paths.version_dir(1)), "weight_version": 1})
    assert value_of(plan.paths.version_dir(1)) == 0.75


def other_examples(plan: Plan) -> None:
    interrupt(plan, 30)
    plan.paths.shard("train", 1).unlink()
    plan.paths.manifest("train", 1).unlink()
    collect(plan, 11)


def another_model(plan: Plan) -> None:
    interrupt(plan, 30)
    serve(plan, global_step=8)
    (plan.paths.version_dir(1) / TRAINER / "optimizer.pt").unlink()


def no_training(plan: Plan) -> None:
    shutil.rmtree(plan.paths.update_dir(1))
    interrupt(plan, 30)


@pytest.mark.parametrize(
    "happen",
    [
        lambda plan: None,
        lambda plan: (interrupt(plan, 30) / "optimizer.pt").unlink(),
        lambda plan: (interrupt(plan, 30) / STATE).unlink(),
        other_examples,
        another_model,
        no_training,
        lambda plan: interrupt(plan, 60, value=float("nan")),
        lambda plan: interrupt(plan, 30, value=float("nan")),
    ],
    ids=[
        *("nothing was saved", "no optimizer", "half a checkpoint", "other examples", "another model"),
        *("never prepared", "it had diverged at its end", "it had diverged"),
    ],
)
def test_the_update_begins_anew_where_there_is_nothing_to_go_on_with(plan, happen):
    prepare(plan, 1)
    happen(plan)
    assert resumed_step(arguments_of(prepare(plan, 1))) is None


@pytest.fixture
def sharded(tmp_path: Path) -> Plan:
    """A training of two nodes with DeepSpeed, interrupted after 10 of 30 steps."""
    plan = make_plan(tmp_path / "log", write_model(tmp_path / "base"), *SETTINGS, "trainer.deepspeed=zero1")
    collect(plan, 12)
    prepare(plan, 1, 2)
    checkpoint = interrupt(plan, 10)
    (checkpoint / "optimizer.pt").unlink()
    (checkpoint / "latest").write_text("global_step10")
    (checkpoint / "global_step10").mkdir()
    for rank in (0, 1):
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        (checkpoint / "global_step10" / name).write_bytes(b"state")
    return plan


def test_shards_of_another_number_of_processes_are_converted(sharded, converter):
    commands = converter(0)

    arguments = arguments_of(prepare(sharded, 1, 3))

    assert (resumed_step(arguments), arguments["max_steps"]) == (7, 20)
    [command] = commands
    assert command[-1].endswith("resume/global_step10_universal")
    settings = json.loads(Path(arguments["deepspeed"]).read_bytes())
    assert settings["checkpoint"] == {"load_universal": True}
    assert settings["zero_optimization"]["stage"] == 1
    assert "deepspeed.json" in read_summary(sharded.paths.update_dir(1)).files


def test_shards_of_the_same_number_are_left_as_they_are(sharded, converter):
    commands = converter(0)
    arguments = arguments_of(prepare(sharded, 1, 2))
    assert resumed_step(arguments) == 10
    assert commands == []
    assert Path(arguments["deepspeed"]) == CONFIG_DIR / "deepspeed" / "zero1.json"


def test_shards_that_cannot_be_converted_begin_the_update_again(sharded, converter, caplog):
    caplog.set_level("INFO")
    converter(1)
    arguments = arguments_of(prepare(sharded, 1, 3))
    assert resumed_step(arguments) is None
    message = "starts from its beginning: its shards cannot be converted: it ended with exit code 1"
    assert message in caplog.text
    assert Path(arguments["deepspeed"]) == CONFIG_DIR / "deepspeed" / "zero1.json"
