"""Whoever is about to use a published model whose file has changed refuses it, and names the file."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rl_agent.cli.driver import serve, train
from rl_agent.config.plan import Plan
from rl_agent.engine.model import SERVED
from rl_agent.errors import StoreError
from rl_agent.served_model import swap as swap_module
from rl_agent.served_model import versions
from rl_agent.served_model.verify import verify_model
from rl_agent.trainer.grpo.checkpoint.promote import ModelOrigin, promote
from rl_agent.trainer.grpo.launch import verify_models, write_settings
from rl_agent.trainer.llamafactory import publish as publish_module
from rl_agent.trainer.llamafactory.inputs import read_summary, write_summary
from rl_agent.trainer.llamafactory.model import ServedVersion
from rl_agent.trainer.llamafactory.prepare import prepare
from tests.integration.tiny_model import make_plan
from tests.unit.rollout.trajectories_made import make_header, make_step, make_trajectory, write_shard
from tests.unit.safetensors_files import write_model
from tests.unit.trainer.llamafactory import conftest
from tests.unit.trainer.llamafactory.trainings import finish_training, publish_iteration

plan, disk_without_waiting = conftest.plan, conftest.disk_without_waiting


def plan_file(plan: Plan) -> str:
    path = plan.paths.log_path / "plan.json"
    plan.write(path)
    return str(path)


def serve_it(plan: Plan) -> None:
    serve.main(["--plan", plan_file(plan)])


def prepare_an_update(plan: Plan) -> None:
    step = make_step("8<|im_end|>")
    write_shard(plan.paths.shard("train", 2), make_header(2), make_trajectory(0, iteration=2, steps=(step,)))
    prepare(plan, 2)


def train_from_it(plan: Plan) -> None:
    finish_training(plan, 2)
    folder = plan.paths.update_dir(2)
    write_summary(folder, replace(read_summary(folder), started_from=str(plan.paths.version_dir(1))))
    train.main(["--plan", plan_file(plan), "--iteration", "2"])


def train_along(plan: Plan) -> None:
    stream = make_plan(
        plan.paths.log_path, Path(plan.config.model.base_model),
        "trainer=grpo_cpu", "pool=elastic", "rollout.group_size=4", "env_config.train_tasks_rollout_size=10",
    )  # fmt: skip
    stream.paths.run_dir(stream.run_id).mkdir(parents=True)
    verify_models(write_settings(stream, manager="http://m", start=0))


def swap_it_in(plan: Plan) -> None:
    class NoStore:
        versions = ()

    swap_module._publish(None, NoStore(), 1, plan.paths.version_dir(1))


def merge_an_adapter_into_it(plan: Plan) -> None:
    adapter = plan.paths.log_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        f'{{"base_model_name_or_path": "{plan.paths.version_dir(1)}"}}'
    )
    publish_module._merge_arguments(plan, ServedVersion.of(plan.config), adapter, adapter)


@pytest.mark.parametrize(
    "use", [serve_it, prepare_an_update, train_from_it, train_along, swap_it_in, merge_an_adapter_into_it]
)
def test_a_model_that_changed_on_the_disk_is_not_used(plan, use: Callable[[Plan], None], monkeypatch):
    monkeypatch.setattr(os, "execvpe", lambda *words: pytest.fail("it was started"))
    publish_iteration(plan, 1)
    verify_model(plan.paths.model_link)
    model = plan.paths.version_dir(1) / "model.safetensors"
    with model.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\x01")
    with pytest.raises(StoreError, match=r"version-000001/model\.safetensors: differs from what was written"):
        use(plan)


def test_a_version_of_a_streaming_trainer_is_not_marked_as_served(plan, tmp_path):
    """The folder of a model is made from an earlier version, whose records are not its own."""
    publish_iteration(plan, 1)
    versions.mark_served(plan.paths, 1.0)
    checkpoint = tmp_path / "step-1"
    checkpoint.mkdir()
    model = write_model(tmp_path / "model", value=0.5)
    for name in (versions.RECORD, SERVED):
        (model / name).write_bytes((plan.paths.version_dir(1) / name).read_bytes())
    origin, base = ModelOrigin(2, "run", 2, {"total_steps": 1.0}), Path(plan.config.model.base_model)
    promote(plan.paths, model, checkpoint, origin, current=base, keep=9, pinned=())
    assert versions.is_unserved(plan.paths)
    files = versions.read_record(plan.paths.version_dir(2)).files
    assert files.keys().isdisjoint((versions.RECORD, SERVED))
    verify_model(plan.paths.model_link)
