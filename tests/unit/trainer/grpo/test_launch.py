"""A streaming trainer begins from what lies on the disk, and from what it is told."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from rl_agent.config.plan import Plan
from rl_agent.engine.server import Answer
from rl_agent.errors import ConfigError
from rl_agent.pool import run_pool
from rl_agent.served_model import versions
from rl_agent.system.files import write_whole
from rl_agent.trainer.grpo import worker
from rl_agent.trainer.grpo.checkpoint.states import note_published, write_state
from rl_agent.trainer.grpo.launch import settings_file, trainer_command, trainer_environment, write_settings
from rl_agent.trainer.grpo.settings import TrainerSettings, out_of_memory_file
from rl_agent.trainer.grpo.worker import read_settings
from rl_agent.trainer.llamafactory.launch import Rendezvous
from tests.integration.tiny_model import make_plan
from tests.unit.plan.test_gpu_memory import QWEN3_8B
from tests.unit.safetensors_files import write_model

SETTINGS = ("trainer=grpo_cpu", "pool=elastic", "rollout.group_size=4")
SIZES = ("env_config.train_tasks_rollout_size=10", "trainer.mini_batches=3")


@pytest.fixture
def plan(tmp_path) -> Plan:
    plan = make_plan(tmp_path / "log", write_model(tmp_path / "base"), *SETTINGS, *SIZES)
    settings_file(plan, 0).parent.mkdir(parents=True)
    return plan


def settings_of(plan: Plan) -> TrainerSettings:
    path = write_settings(plan, manager="http://m", start=0)
    return TrainerSettings.model_validate_json(path.read_bytes())


def changed(plan: Plan, **sections) -> Plan:
    return plan.model_copy(update={"config": plan.config.model_copy(update=sections)})


def published(plan: Plan, *versions: int) -> None:
    """Note these versions as published, each after the iteration of its number."""
    for version in versions:
        note_published(plan.paths.streaming, plan.run_id, version, version)


def stored(plan: Plan) -> Path:
    """The store of published weights, with something in it."""
    store = settings_of(plan).stream.store
    store.mkdir(parents=True)
    write_whole(store / "version", "")
    return store


def checkpoint(folder: Path, *, served: str) -> Path:
    folder.mkdir(parents=True)
    write_state(folder, {"served": served})
    return folder


def own_checkpoint(plan: Plan, step: int, *, served: str) -> Path:
    return checkpoint(plan.paths.streaming / "checkpoints" / f"step-{step}", served=served)


def model(plan: Plan, version: int, *, previous: int | None, with_checkpoint: bool = True) -> Path:
    folder = write_model(plan.paths.version_dir(version))
    before = None if previous is None else plan.paths.version_dir(previous).name
    record = versions.Published(version, before, "run", version, 0.1, 1, 1, 0.0)
    versions.write_record(folder, record)
    if with_checkpoint:
        checkpoint(folder / versions.TRAINER, served=before or "")
    versions.switch(plan.paths, folder)
    return folder


def test_a_first_start_begins_with_the_base_model_and_divides_the_groups(plan):
    settings = settings_of(plan)
    assert settings.model == Path(plan.config.model.base_model)
    assert (settings.first_version, settings.groups, settings.mini_batches) == (0, 10, 3)
    assert settings.stream.start is None
    assert (settings.stream.served, settings.stream.next_version) == ("", 1)
    assert settings.export_dtype == "float32"


@pytest.mark.parametrize(("gpu_memory_gib", "chosen"), [(79.6, (0.0, False)), (0.0, (None, None))])
@pytest.mark.parametrize("part", [dict, lambda text: {"text_config": text}], ids=["text", "vision"])
def test_what_is_left_to_the_gpus_memory_is_chosen_at_the_start(tmp_path, part, gpu_memory_gib, chosen):
    words = (*SETTINGS, *SIZES, "trainer=grpo")[1:]
    plan = make_plan(tmp_path / "log", write_model(tmp_path / "base"), *words)
    (tmp_path / "base" / "config.json").write_text(json.dumps(part(QWEN3_8B | {"num_hidden_layers": 1})))
    settings_file(plan, 0).parent.mkdir(parents=True)
    hardware = plan.hardware.model_copy(update={"gpu_memory_gib": gpu_memory_gib})
    parallel = settings_of(plan.model_copy(update={"hardware": hardware})).parallel
    assert (parallel.activation_checkpointing, parallel.offload_optimizer) == chosen


def test_a_trainer_that_ran_out_of_memory_keeps_less_from_then_on(tmp_path):
    words = (*SETTINGS, *SIZES, "trainer=grpo")[1:]
    plan = make_plan(tmp_path / "log", write_model(tmp_path / "base"), *words)
    (tmp_path / "base" / "config.json").write_text(json.dumps(QWEN3_8B))
    settings_file(plan, 0).parent.mkdir(parents=True)
    plan = plan.model_copy(
        update={"hardware": plan.hardware.model_copy(update={"gpu_memory_gib": 139.8, "num_gpus": 1})}
    )
    shares = []
    for start in range(3):
        path = write_settings(plan, manager="http://m", start=start)
        shares.append(read_settings(path).parallel.activation_checkpointing)
        if start == 0:
            out_of_memory_file(path).touch()
    assert shares == [0.5, 0.75, 0.75]


def test_a_worker_notes_that_a_gpus_memory_is_full(plan, monkeypatch, capsys):
    path = write_settings(plan, manager="http://m", start=0)
    monkeypatch.setattr(worker, "join_ranks", Mock(side_effect=torch.OutOfMemoryError("Tried to allocate")))
    assert worker.main([str(path)]) == 1
    assert out_of_memory_file(path).exists()
    assert "Tried to allocate" in capsys.readouterr().err


def test_a_restart_continues_its_checkpoint_and_engines_stay(plan):
    settings_of(plan)
    model(plan, 1, previous=None)
    own = own_checkpoint(plan, 7, served="version-000001")
    settings = settings_of(plan)
    assert own.exists()
    assert settings.stream.start is None
    assert (settings.stream.served, settings.stream.next_version) == ("version-000001", 2)
    assert (settings.stream.engines_model, settings.stream.engines_version) == ("", 0)


def test_after_a_crash_between_model_and_checkpoint_the_model_continues(plan):
    folder = model(plan, 1, previous=None)
    own = own_checkpoint(plan, 7, served="")
    assert settings_of(plan).stream.start == folder / versions.TRAINER
    assert not own.exists()


def test_a_crash_right_after_a_model_leaves_its_number_to_that_version(plan):
    """Episodes of the next iteration are sampled from it: under another number they would be too old."""
    store = stored(plan)
    published(plan, 1)
    model(plan, 1, previous=None)
    own_checkpoint(plan, 3, served="")
    settings = settings_of(plan)
    assert store.exists()
    assert (settings.first_version, settings.stream.engines_version) == (1, 0)


def test_after_a_rollback_the_older_model_continues_under_a_new_number(plan):
    first = model(plan, 1, previous=None)
    model(plan, 2, previous=1)
    own_checkpoint(plan, 9, served="version-000002")
    published(plan, 1, 2, 3)
    store = stored(plan)
    versions.rollback(plan.paths)
    settings = settings_of(plan)
    assert settings.stream.start == first / versions.TRAINER
    assert (settings.first_version, settings.stream.next_version) == (1, 4)
    assert not store.exists()  # what was published of the other line is not served
    assert settings.stream.published == {1: 1, 2: None, 3: None}
    assert settings_of(plan).stream.published == settings.stream.published  # also after a death


def test_after_a_rollback_to_the_base_model_no_published_version_is_left(plan):
    model(plan, 1, previous=None)
    own_checkpoint(plan, 9, served="version-000001")
    published(plan, 1)
    store = stored(plan)
    versions.rollback(plan.paths)
    settings = settings_of(plan)
    assert (settings.first_version, settings.stream.start, settings.stream.next_version) == (0, None, 2)
    assert settings.stream.published == {1: None}
    assert not store.exists()


def test_a_trainer_that_dies_before_a_checkpoint_remakes_its_versions(plan):
    published(plan, 1, 2)
    assert settings_of(plan).stream.published == {1: 1, 2: 2}


def test_a_model_without_a_checkpoint_is_begun_from_with_a_fresh_optimizer(plan):
    model(plan, 1, previous=None, with_checkpoint=False)
    own_checkpoint(plan, 3, served="")
    settings = settings_of(plan)
    assert settings.stream.start is None
    assert settings.first_version == 1


def test_several_ranks_are_started_by_torchrun_and_one_is_not(plan):
    command = trainer_command(plan, Path("s.json"), 1, Rendezvous())
    assert command[1:3] == ["-m", "rl_agent.trainer.grpo.worker"]
    two = changed(plan, trainer=plan.config.grpo.model_copy(update={"nproc_per_node": 2}))
    command = trainer_command(two, Path("s.json"), 1, Rendezvous())
    assert command[1:3] == ["-m", "torch.distributed.run"]
    assert command[command.index("--nproc-per-node") + 1] == "2"


def test_the_pool_s_token_reaches_the_trainer_whichever_way_it_was_given(plan, tmp_path):
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "token").chmod(0o600)
    pool = plan.config.pool.model_copy(update={"token_file": tmp_path / "token"})
    assert trainer_environment(changed(plan, pool=pool), {}, 1)[pool.token_env_var] == "secret"


def test_a_number_announced_to_engines_is_never_used_again(plan):
    """Files as with checkpoint.every=3: versions 2 and 3 were published, and model.pt is still the first."""
    model(plan, 1, previous=None)
    own_checkpoint(plan, 7, served="version-000001")
    assert settings_of(plan).stream.next_version == 2
    published(plan, 3)
    assert settings_of(plan).stream.next_version == 4
    model(plan, 9, previous=1)
    assert settings_of(plan).stream.next_version == 10


def test_versions_of_another_run_keep_numbers_and_imply_no_iterations(plan):
    """Files as where a folder's episodes were deleted, and iterations begin at 1 once more."""
    note_published(plan.paths.streaming, "another", 9, 9)
    settings = settings_of(plan)
    assert (settings.stream.next_version, settings.stream.published) == (10, {})
    note_published(plan.paths.streaming, plan.run_id, 10, 1)
    assert settings_of(plan).stream.published == {10: 1}


def with_adapter(plan: Plan, **changes: Any) -> Plan:
    grpo = plan.config.grpo
    lora = grpo.lora.model_copy(update={"rank": 4} | changes)
    return changed(plan, trainer=grpo.model_copy(update={"lora": lora}))


def test_an_adapter_goes_on_top_of_the_base_model_whatever_is_served(plan):
    adapted = with_adapter(plan)
    folder = model(plan, 1, previous=None)
    settings = settings_of(adapted)
    assert settings.model == Path(plan.config.model.base_model)
    assert (settings.stream.start, settings.first_version) == (folder / versions.TRAINER, 1)


def test_engines_of_adapters_start_on_the_base_model_as_version_zero(plan):
    adapted = with_adapter(plan, publish="adapter")
    model(plan, 1, previous=None)
    stream = settings_of(adapted).stream
    assert (stream.served, stream.engines_model, stream.engines_version) == ("version-000001", "", 0)
    wanted = run_pool.manager_settings(adapted)
    assert (wanted.model, wanted.weight_version) == (plan.config.model.base_model, 0)


def test_engines_of_adapters_are_ready_while_the_trainer_catches_up(plan, monkeypatch):
    adapted = with_adapter(plan, publish="adapter")
    model(plan, 1, previous=None)
    engine = {"name": run_pool.worker_name(plan), "state": "ready", "reason": "", "weight_version": 0}
    status = {"weight_version": 0, "engines": [engine]}
    monkeypatch.setattr(run_pool, "ask_manager", lambda *_: ("http://pool", status))
    assert run_pool.probe(adapted, {}).answer is Answer.WANTED
    assert run_pool.probe(with_adapter(plan), {}).answer is Answer.NOT_READY


def test_no_adapter_goes_on_top_of_a_model_that_was_made_without(plan):
    model(plan, 1, previous=None, with_checkpoint=False)
    with pytest.raises(ConfigError, match="was made without an adapter"):
        settings_of(with_adapter(plan))


def test_a_lost_model_link_is_refused_and_no_checkpoint_is_dropped(plan):
    model(plan, 1, previous=None)
    own = own_checkpoint(plan, 7, served="version-000001")
    plan.paths.model_link.unlink()
    with pytest.raises(ConfigError, match="is gone, and led to version-000001"):
        settings_of(plan)
    assert own.exists()
