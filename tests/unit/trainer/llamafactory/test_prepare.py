"""Preparing an update: from shards to the files that LLaMA-Factory reads."""

import dataclasses
import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import yaml
from datasets import load_from_disk

from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver import prepare_update, publish
from rl_agent.config.plan import Plan
from rl_agent.errors import ConfigError, HarnessError, StoreError
from rl_agent.served_model.digest import FileDigest
from rl_agent.served_model.versions import read_record, write_record
from rl_agent.trainer.llamafactory import prepare as prepare_module
from rl_agent.trainer.llamafactory.dataset.export import IGNORED
from rl_agent.trainer.llamafactory.inputs import await_inputs, read_summary
from rl_agent.trainer.llamafactory.optimizer.checkpoints import STATE
from rl_agent.trainer.llamafactory.prepare import needed_bytes, prepare
from rl_agent.types import Status
from tests.support.tiny_chat import tiny_chat
from tests.unit.rollout.trajectories_made import make_header, make_step, make_trajectory, write_shard
from tests.unit.safetensors_files import ROWS, write_checkpoint, write_model
from tests.unit.trainer.llamafactory.optimizer.optimizer_states import write_optimizer_state


def collect(plan: Plan, iteration: int, *episodes) -> None:
    write_shard(plan.paths.shard("train", iteration), make_header(iteration), *episodes)


def arguments_of(plan: Plan, iteration: int) -> dict:
    """Prepare an update and read the arguments of its training."""
    return yaml.safe_load(prepare(plan, iteration).read_text())


def run_verb(verb, plan: Plan, iteration: int = 1) -> VerbResult:
    plan_file = plan.paths.log_path / "plan.json"
    plan.write(plan_file)
    return verb.main(["--plan", str(plan_file), "--iteration", str(iteration)])


def rows(yaml_path: Path, name: str = "train") -> list[dict]:
    return list(load_from_disk(str(yaml_path.parent / "dataset"))[name])


def answers(yaml_path: Path) -> list[str]:
    tokens = [[label for label in row["labels"] if label != IGNORED] for row in rows(yaml_path)]
    return sorted(tiny_chat().decode_response(labels) for labels in tokens)


def say(text: str):
    return (make_step(f"{text}<|im_end|>"),)


def test_positive_steps_become_a_dataset_and_a_yaml(plan_of):
    plan = plan_of()
    responses = enumerate([("a", 1.0), ("no", 0.0), ("b", 1.0)])
    collect(plan, 1, *(make_trajectory(i, reward=reward, steps=say(text)) for i, (text, reward) in responses))

    path = prepare(plan, 1)

    assert answers(path) == ["a", "b"]
    arguments = yaml.safe_load(path.read_text())
    assert arguments["model_name_or_path"] == plan.config.model.base_model
    assert "resume_from_checkpoint" not in arguments
    assert arguments["tokenized_path"] == str(path.parent / "dataset")
    summary = read_summary(path.parent)
    assert (summary.samples, summary.candidates, summary.new_steps, summary.steps_before) == (2, 2, 2, 0)


def test_an_update_uses_one_model_even_if_another_is_published_meanwhile(plan_of, monkeypatch):
    plan = plan_of()
    collect(plan, 1, make_trajectory(0, steps=say("a")))
    write = prepare_module.write_datasets

    def publish_another(*arguments):
        write_model(plan.paths.version_dir(7))
        plan.paths.model_link.symlink_to(plan.paths.version_dir(7))
        return write(*arguments)

    monkeypatch.setattr(prepare_module, "write_datasets", publish_another)
    path = prepare(plan, 1)

    assert read_summary(path.parent).started_from == plan.config.model.base_model
    assert yaml.safe_load(path.read_text())["model_name_or_path"] == plan.config.model.base_model


def test_an_unfinished_iteration_does_not_count(plan_of):
    plan = plan_of()
    collect(plan, 1, make_trajectory(0, steps=say("done")))
    growing = make_trajectory(1, iteration=2, steps=say("growing"))
    write_shard(plan.paths.checkpoint_shard("train", 2), make_header(2), growing)
    assert answers(prepare(plan, 2)) == ["done"]


def test_nothing_positive_is_an_outcome_that_leaves_nothing_to_train_on(plan_of, capsys):
    plan = plan_of()
    collect(plan, 1, make_trajectory(0))
    prepare(plan, 1)
    plan.paths.shard("train", 1).unlink()
    collect(plan, 1, make_trajectory(0, reward=0.0), make_trajectory(1, status=Status.FAILED))
    assert run_verb(prepare_update, plan) == VerbResult({"outcome": "skipped"})
    logged = capsys.readouterr().err
    assert "nothing to train on: no step of the last 4 iterations is positive" in logged
    with pytest.raises(ConfigError, match="run prepare-update first"):
        read_summary(plan.paths.update_dir(1))


def test_more_nodes_make_fewer_steps_of_the_same_samples(plan_of):
    plan = plan_of("trainer.per_device_train_batch_size=2", "trainer.num_train_epochs=1")
    collect(plan, 1, *(make_trajectory(i) for i in range(12)))
    steps = []
    for nodes in (1, 2, 3):
        folder = prepare(plan, 1, nodes).parent
        summary = read_summary(folder)
        await_inputs(folder, nodes, timeout_s=0.0)  # complete for that many nodes
        assert summary.nodes == nodes
        steps.append(summary.new_steps)
    assert steps == [6, 3, 2]


def files_of(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*.*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_repeated_preparation_writes_the_same_files(plan_of):
    held_out = ("trainer.do_eval=true", "trainer.val_split_ratio=0.4")
    plan = plan_of("trainer.positive_samples_to_train=5", *held_out)
    for iteration in (1, 2):
        steps = (say(f"{iteration}-{i}") for i in range(20))
        episodes = (make_trajectory(i, iteration=iteration, steps=each) for i, each in enumerate(steps))
        collect(plan, iteration, *episodes)
    first = prepare(plan, 2)
    before = files_of(first.parent)
    assert files_of(prepare(plan, 2).parent) == before
    assert len(rows(first)) + len(rows(first, "validation")) == 5
    assert {"dataset/train", "dataset/validation"} <= {str(Path(name).parent) for name in before}
    assert yaml.safe_load(before["train.yaml"])["eval_dataset"] == "rl_agent_validation"


def test_a_damaged_shard_is_named(plan_of):
    plan = plan_of()
    for iteration in (1, 2):
        collect(plan, iteration, make_trajectory(0, iteration=iteration))
    shard = plan.paths.shard("train", 1)
    shard.write_bytes(shard.read_bytes().replace(b'"status"', b'"satus"'))
    with pytest.raises(StoreError, match=r"iteration1:2: is damaged: its bytes do not match its checksum"):
        prepare(plan, 2)


def test_leftovers_of_an_attempt_that_ended_early_are_removed(plan_of):
    plan = plan_of()
    collect(plan, 1, make_trajectory(0))
    leftover = write_checkpoint(plan.paths.training_dir(1), 2)
    prepare(plan, 1)
    assert not leftover.exists()


def test_a_full_disk_is_reported_before_training(plan_of, monkeypatch):
    plan = plan_of()
    collect(plan, 1, make_trajectory(0))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("usage", "free")(0))
    message = r"log_path=.*: an update needs about 0\.0 GiB of disk, 0\.0 GiB are free"
    with pytest.raises(ConfigError, match=message):
        prepare(plan, 1)


def test_the_estimate_counts_weights_twice_and_two_moments(plan_of, tmp_path):
    values = ROWS * 8 + 8 + ROWS * 8
    assert needed_bytes(tmp_path / "base", plan_of().config) == values * (4 + 4 + 8)
    only_model = plan_of("trainer.save_only_model=true").config
    assert needed_bytes(tmp_path / "base", only_model) == values * (4 + 4)
    lora = plan_of("trainer.finetuning_type=lora").config
    assert needed_bytes(tmp_path / "base", lora) == 2 * values * 4


def publish_once(plan: Plan) -> Path:
    """Iteration 1, prepared, 'trained' and published through the verb, with a real state of AdamW."""
    collect(plan, 1, make_trajectory())
    prepare(plan, 1)
    checkpoint = write_checkpoint(plan.paths.training_dir(1), 4)
    state = (checkpoint / STATE).read_bytes()
    write_optimizer_state(checkpoint)
    (checkpoint / STATE).write_bytes(state)
    version = plan.paths.version_dir(1)
    assert run_verb(publish, plan) == VerbResult({"path": str(version), "weight_version": 1})
    return version


@pytest.mark.parametrize(
    ("words", "first_step"),
    [((), 4), (("trainer.lr_scheduler_type=cosine",), 0)],
    ids=["a constant rate counts on", "a decaying schedule starts anew with the old moments"],
)
def test_the_second_update_goes_on_from_the_first(plan_of, words, first_step):
    plan = plan_of(*words)
    version = publish_once(plan)
    collect(plan, 2, make_trajectory(1, iteration=2))

    arguments = arguments_of(plan, 2)

    assert arguments["model_name_or_path"] == str(version)
    resume = Path(arguments["resume_from_checkpoint"])
    assert (resume / "optimizer.pt").samefile(version / "trainer" / "optimizer.pt") == (first_step == 4)
    assert json.loads((resume / STATE).read_bytes())["global_step"] == first_step
    assert arguments["max_steps"] == first_step + 2
    summary = read_summary(plan.paths.update_dir(2))
    assert (summary.steps_before, summary.first_step, summary.new_steps) == (4, first_step, 2)


def test_steps_are_counted_on_where_trainer_starts_to_count_at_0(plan_of):
    plan = plan_of("trainer.lr_scheduler_type=cosine")
    publish_once(plan)
    prepare(plan, 2)
    write_checkpoint(plan.paths.training_dir(2), 2)
    run_verb(publish, plan, 2)
    assert read_record(plan.paths.version_dir(2)).update_steps == 4 + 2


def test_without_continuation_only_the_weights_go_on(plan_of):
    version = publish_once(plan_of())
    arguments = arguments_of(plan_of("trainer.continue_optimizer=false"), 2)
    assert arguments["model_name_or_path"] == str(version)
    assert not {"resume_from_checkpoint", "max_steps"} & arguments.keys()


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt"])
def test_a_damaged_state_of_the_optimizer_is_not_gone_on_with(plan_of, name, caplog):
    plan = plan_of()
    version = publish_once(plan)
    flip(version / "trainer" / name)
    collect(plan, 2, make_trajectory(1, iteration=2))

    with caplog.at_level("INFO"):
        arguments = arguments_of(plan, 2)
    assert arguments["model_name_or_path"] == str(version)
    assert "resume_from_checkpoint" not in arguments
    assert f"the optimizer starts fresh: {version}/trainer/{name}: differs from what was" in caplog.text


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "published.json"])
def test_a_damaged_file_of_the_served_model_is_named(plan_of, name):
    plan = plan_of()
    version = publish_once(plan)
    collect(plan, 2, make_trajectory(1, iteration=2))
    (version / name).write_text('{"model')
    with pytest.raises(HarnessError, match=rf"^{version}/{name}: .*; restore .*`rollback") as refused:
        prepare(plan, 2)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_of_the_base_model_is_named(plan_of, name):
    plan = plan_of()
    collect(plan, 1, make_trajectory(0))
    file = Path(plan.config.model.base_model) / name
    file.write_text('{"model')
    with pytest.raises(ConfigError, match=rf"^{file}: .*; (restore the file|save the tokenizer anew .*)$"):
        prepare(plan, 1)


def test_a_damaged_adapter_is_refused(plan_of):
    plan = plan_of("trainer.finetuning_type=lora")
    version = publish_once(plan)
    adapter = version / "trainer" / "adapter_config.json"
    adapter.write_text(json.dumps({"base_model_name_or_path": plan.config.model.base_model}))
    files = {"adapter_config.json": FileDigest(adapter.stat().st_size, "00" * 32)}
    write_record(version, dataclasses.replace(read_record(version), trainer_files=files))
    with pytest.raises(StoreError, match=r"adapter_config\.json: differs from what was written; restore the"):
        prepare(plan, 2)


def test_an_adapter_that_names_no_base_model_is_refused(plan_of):
    plan = plan_of("trainer.finetuning_type=lora")
    adapter = publish_once(plan) / "trainer" / "adapter_config.json"
    adapter.write_text("{")
    with pytest.raises(ConfigError, match=rf"^{adapter}: is damaged: .*; restore .*, or .*`rollback --to N`"):
        prepare(plan, 2)


def flip(file: Path) -> None:
    """One bit in the middle of it."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_an_adapter_goes_on_upon_its_own_base(plan_of):
    plan = plan_of("trainer.finetuning_type=lora")
    version = publish_once(plan)
    base = plan.config.model.base_model
    (version / "trainer" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))

    resumed = arguments_of(plan, 2)
    assert resumed["model_name_or_path"] == base
    assert "resume_from_checkpoint" in resumed

    afresh = arguments_of(plan_of("trainer.finetuning_type=lora", "trainer.continue_optimizer=false"), 2)
    assert afresh["model_name_or_path"] == base
    assert afresh["adapter_name_or_path"] == str(version / "trainer")

    full = arguments_of(plan_of(), 2)
    assert full["model_name_or_path"] == str(version)
    assert "adapter_name_or_path" not in full


def test_publishing_records_the_numbers_of_the_training(plan_of):
    plan = plan_of()
    collect(plan, 1, make_trajectory(0))
    prepare(plan, 1)
    training = write_checkpoint(plan.paths.training_dir(1), 2).parent
    log = [
        {"current_steps": 1, "loss": 3.0, "lr": 1e-3},
        {"current_steps": 2, "loss": 1.0, "lr": 1e-3},
        {"current_steps": 2, "eval_loss": 1.5},
        {"current_steps": 2, "epoch": 2.0},
    ]
    (training / "trainer_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    run_verb(publish, plan)

    [record] = [json.loads(line) for line in plan.paths.metrics.read_text().splitlines()]
    assert (record["iteration"], record["phase"], record["update/weight_version"]) == (1, "update", 1)
    assert (record["update/loss"], record["update/loss_first"], record["update/loss_last"]) == (2.0, 3.0, 1.0)
    assert (record["update/eval_loss"], record["update/samples"], record["update/total_steps"]) == (1.5, 1, 2)
    assert (training / "trainer_log.jsonl").is_file()
    assert not list(training.glob("**/*.safetensors"))
