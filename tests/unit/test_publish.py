"""Publishing: the old or the new model is served, whole, at every instant."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rl_agent.config import Plan
from rl_agent.engine.model import resolve_model
from rl_agent.errors import ConfigError, PublishError
from rl_agent.update import files, versions
from rl_agent.update.checks import check_model
from rl_agent.update.prepare import SUMMARY_FILE
from rl_agent.update.publish import find_checkpoint, publish
from rl_agent.update.versions import read_record, rollback
from rl_agent.update.weights import CHUNK_BYTES
from tests.integration.tiny_model import make_plan
from tests.unit.safetensors_files import value_of, write_checkpoint, write_model


@pytest.fixture(autouse=True)
def disk_without_waiting(monkeypatch):
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: None)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    base = write_model(tmp_path / "base", value=0.0)
    return make_plan(tmp_path / "log with space", base)


def finish_training(plan: Plan, iteration: int, *, value: float | None = None, **extra: np.ndarray) -> Path:
    """The state of the disk between training and publishing; weights hold iteration / 8 unless told."""
    folder = plan.paths.update_dir(iteration)
    folder.mkdir(parents=True, exist_ok=True)
    summary = {
        "samples": 5,
        "validation_samples": 0,
        "candidates": 9,
        "learning_rate": 1e-3,
        "steps_before": 0,
        "new_steps": 4,
    }
    (folder / SUMMARY_FILE).write_text(json.dumps(summary))
    weights = iteration / 8 if value is None else value
    return write_checkpoint(plan.paths.training_dir(iteration), 4 * iteration, value=weights, **extra)


def publish_iteration(plan: Plan, iteration: int):
    finish_training(plan, iteration)
    return publish(plan, iteration, os.environ, now=1000.0 + iteration)


def served_value(plan: Plan) -> float:
    """Which weights an engine would load now; checks that they are whole."""
    folder = Path(resolve_model(plan.config).path)
    check_model(folder, None)
    return value_of(folder)


def kept(plan: Plan) -> list[str]:
    return sorted(path.name for path in plan.paths.checkpoints.glob("version-*"))


def test_the_first_publish_serves_version_one(plan):
    checkpoint = finish_training(plan, 1)

    model = publish(plan, 1, os.environ, now=1000.0)

    assert model == resolve_model(plan.config)
    assert (model.weight_version, Path(model.path).name) == (1, "version-000001")
    assert plan.paths.model_link.readlink() == Path("checkpoints/version-000001")
    assert served_value(plan) == 0.125
    record = read_record(Path(model.path))
    assert (record.previous, record.iteration, record.update_steps, record.samples) == (None, 1, 4, 5)
    assert not checkpoint.exists()


def test_an_engine_finds_no_pickle_and_the_trainer_finds_its_state(plan):
    folder = Path(publish_iteration(plan, 1).path)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("chat_template.jinja", "config.json", "model.safetensors", "published.json"),
        *("tokenizer.json", "tokenizer_config.json", "trainer"),
    ]
    assert {"optimizer.pt", "scheduler.pt", "trainer_state.json"} <= {
        p.name for p in (folder / "trainer").iterdir()
    }
    assert (folder / "model.safetensors").samefile(folder / "trainer" / "model.safetensors")


def test_the_last_checkpoint_is_the_highest_number_that_is_finished(tmp_path):
    training = tmp_path / "training"
    for step in (4, 9, 10):
        write_checkpoint(training, step)
    assert find_checkpoint(training).name == "checkpoint-10"
    (training / "checkpoint-10" / "trainer_state.json").unlink()
    assert find_checkpoint(training).name == "checkpoint-9"
    assert find_checkpoint(tmp_path / "none") is None


def test_without_checkpoints_the_final_model_is_taken(plan):
    checkpoint = finish_training(plan, 1)
    training = plan.paths.training_dir(1)
    for path in list(checkpoint.iterdir()):
        path.rename(training / path.name)
    checkpoint.rmdir()
    assert publish(plan, 1, os.environ, now=1.0).weight_version == 1
    assert served_value(plan) == 0.125


def test_a_training_without_result_is_an_error_that_changes_nothing(plan):
    publish_iteration(plan, 1)
    with pytest.raises(PublishError, match="left no finished checkpoint"):
        publish(plan, 2, os.environ, now=2.0)
    assert served_value(plan) == 0.125


def test_publishing_twice_makes_one_version(plan):
    first = publish_iteration(plan, 1)
    assert publish(plan, 1, os.environ, now=2000.0) == first
    assert kept(plan) == ["version-000001"]


def test_training_again_in_the_same_iteration_makes_another_version(plan):
    publish_iteration(plan, 1)
    finish_training(plan, 1, value=0.75)
    assert publish(plan, 1, os.environ, now=2.0).weight_version == 2
    assert served_value(plan) == 0.75


def cut_short(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)


def cut_header(checkpoint: Path) -> None:
    os.truncate(checkpoint / "model.safetensors", 20)


def drop(name: str) -> Callable[[Path], None]:
    return lambda checkpoint: (checkpoint / name).unlink()


def put(value: float, dtype: str = "F32") -> Callable[[Path], None]:
    def change(checkpoint: Path) -> None:
        from safetensors.numpy import load_file, save_file

        path = checkpoint / "model.safetensors"
        tensors = load_file(path)
        tensors["lm_head.weight"][3, 7] = value
        save_file(tensors, path)

    return change


def reshape(checkpoint: Path) -> None:
    write_model(checkpoint, rows=5)


def shrink_vocabulary(checkpoint: Path) -> None:
    write_model(checkpoint, rows=2)


def add_tensor(checkpoint: Path) -> None:
    write_model(checkpoint, extra=np.zeros(3, np.float32))


DAMAGE = {
    "cut short": (cut_short, "is cut short"),
    "cut header": (cut_header, "is (cut short|not a readable)"),
    "no weights": (drop("model.safetensors"), "left no finished checkpoint"),
    "no config": (drop("config.json"), r"config\.json cannot be read"),
    "no tokenizer": (drop("tokenizer.json"), r"holds no tokenizer\.json"),
    "nan": (put(float("nan")), r"lm_head\.weight holds NaN or infinity"),
    "infinity": (put(float("-inf")), r"lm_head\.weight holds NaN or infinity"),
    "another shape": (reshape, r"has shape \(5, 8\), in .* it is \(4, 8\)"),
    "too few embeddings": (shrink_vocabulary, "has 2 embeddings for 3 tokens"),
    "an unknown tensor": (add_tensor, "has the unknown tensor extra"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_model_is_refused_and_the_old_one_stays(plan, name):
    publish_iteration(plan, 1)
    damage, message = DAMAGE[name]
    damage(finish_training(plan, 2))

    with pytest.raises(PublishError, match=message):
        publish(plan, 2, os.environ, now=2.0)

    assert resolve_model(plan.config).weight_version == 1
    assert served_value(plan) == 0.125
    assert kept(plan) == ["version-000001"]


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), None])
def test_finite_is_told_from_the_bits_of_every_format(tmp_path, dtype, bad):
    from rl_agent.update.weights import first_not_finite, read_tensors

    values = np.array([0.0, -0.0, 1e-30, -1.5, 6e4, 1.0], np.float32)
    if bad is not None:
        values[4] = bad
    numpy_type = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
    raw = (
        (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        if dtype == "BF16"
        else values.astype(numpy_type[dtype]).tobytes()
    )
    header = json.dumps({"w": {"dtype": dtype, "shape": [6], "data_offsets": [0, len(raw)]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + raw)
    assert first_not_finite(read_tensors(tmp_path)) == (None if bad is None else "w")


def test_a_fault_behind_the_first_chunk_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("rl_agent.update.weights.CHUNK_BYTES", 64)
    assert CHUNK_BYTES > 64
    checkpoint = write_model(tmp_path / "model")
    put(float("nan"))(checkpoint)
    with pytest.raises(PublishError, match="lm_head"):
        check_model(checkpoint, None)


def test_tied_embeddings_may_be_saved_or_not(tmp_path):
    from safetensors.numpy import load_file, save_file

    base, trained = write_model(tmp_path / "base"), write_model(tmp_path / "trained")
    tensors = load_file(trained / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, trained / "model.safetensors")
    with pytest.raises(PublishError, match=r"lacks tensor lm_head\.weight"):
        check_model(trained, base)
    (trained / "config.json").write_text(json.dumps({"vocab_size": 4, "tie_word_embeddings": True}))
    check_model(trained, base)


def test_a_model_in_several_files_needs_all_of_them(tmp_path):
    folder = write_model(tmp_path / "model")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(PublishError, match=r"model-2\.safetensors: is not a readable"):
        check_model(folder, None)


def test_old_versions_are_pruned_the_served_and_the_one_before_are_kept(plan):
    for iteration in range(1, 5):
        publish_iteration(plan, iteration)
    assert kept(plan) == ["version-000003", "version-000004"]
    assert not list(plan.paths.checkpoints.glob("training-*/*"))  # nothing but weights in these


def test_rollback_serves_the_version_before_and_the_next_publish_has_a_new_number(plan):
    for iteration in (1, 2):
        publish_iteration(plan, iteration)

    assert rollback(plan.paths) == plan.paths.version_dir(1)
    assert resolve_model(plan.config).weight_version == 1
    assert served_value(plan) == 0.125

    assert publish_iteration(plan, 3).weight_version == 3
    assert read_record(plan.paths.version_dir(3)).previous == "version-000001"
    assert kept(plan) == ["version-000001", "version-000003"]  # 2 was taken back
    assert rollback(plan.paths) == plan.paths.version_dir(1)


def test_rollback_of_the_first_version_serves_the_base_model(plan):
    publish_iteration(plan, 1)
    assert rollback(plan.paths) is None
    assert resolve_model(plan.config).path == plan.config.model.base_model
    assert publish_iteration(plan, 2).weight_version == 2
    with pytest.raises(ConfigError, match="nothing was published"):
        rollback(plan.paths)
        rollback(plan.paths)


def test_rollback_to_a_pruned_version_says_which_setting_keeps_more(plan):
    for iteration in (1, 2, 3):
        publish_iteration(plan, iteration)
    rollback(plan.paths)
    with pytest.raises(ConfigError, match=r"version-000001: is no longer kept; raise trainer\.keep_versions"):
        rollback(plan.paths)


def test_the_base_of_a_kept_adapter_is_kept(plan):
    for iteration in (1, 2, 3):
        finish_training(plan, iteration)
        publish(plan, iteration, os.environ, now=1.0)
        settings = {"base_model_name_or_path": str(plan.paths.version_dir(1))}
        (plan.paths.version_dir(iteration) / "trainer" / "adapter_config.json").write_text(
            json.dumps(settings)
        )
    publish_iteration(plan, 4)
    assert kept(plan) == ["version-000001", "version-000003", "version-000004"]


def test_a_folder_that_a_user_put_at_model_pt_is_version_zero(plan):
    write_model(plan.paths.model_link, value=0.875)
    assert resolve_model(plan.config).weight_version == 0
    assert served_value(plan) == 0.875

    assert publish_iteration(plan, 1).weight_version == 1
    assert plan.paths.model_link.is_symlink()
    assert served_value(plan) == 0.125
    assert rollback(plan.paths) == plan.paths.version_dir(0)
    assert resolve_model(plan.config).weight_version == 0
    assert served_value(plan) == 0.875


def test_a_link_that_a_user_put_at_model_pt_is_version_zero(plan, tmp_path):
    outside = write_model(tmp_path / "outside", value=0.875)
    plan.paths.model_link.symlink_to(outside)
    publish_iteration(plan, 1)
    rollback(plan.paths)
    assert served_value(plan) == 0.875
    publish_iteration(plan, 2)
    publish_iteration(plan, 3)
    assert kept(plan) == ["version-000002", "version-000003"]
    assert value_of(outside) == 0.875


def test_a_file_system_that_cannot_swap_says_what_to_do(plan, monkeypatch):
    write_model(plan.paths.model_link, value=0.875)

    def cannot(one, other):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(versions, "swap", cannot)
    finish_training(plan, 1)
    with pytest.raises(ConfigError, match=r"move the folder elsewhere and make model\.pt a link"):
        publish(plan, 1, os.environ, now=1.0)
    assert served_value(plan) == 0.875


class Crash(BaseException):
    """The process dies here: nothing catches it."""


STEPS = {
    Path: ("rename", "replace", "symlink_to", "hardlink_to", "mkdir", "unlink"),
    files.os: ("fsync",),
    shutil: ("rmtree",),
}
"""Everything that publishing does to the disk."""


@pytest.fixture
def crash_at(monkeypatch) -> Callable[[int], Callable[[], int]]:
    """Let the process die before its n-th step on the disk; returns a counter of the steps done."""

    def arm(fatal: int) -> Callable[[], int]:
        done = 0

        def guarded(step):
            def run(*args, **kwargs):
                nonlocal done
                if done == fatal:
                    raise Crash
                done += 1
                return step(*args, **kwargs)

            return run

        for owner, names in STEPS.items():
            for name in names:
                monkeypatch.setattr(owner, name, guarded(getattr(owner, name)))
        monkeypatch.setattr(versions, "swap", guarded(files.swap))
        return lambda: done

    return arm


def every_crash(plan: Plan, iteration: int, crash_at, restore) -> Iterator[int]:
    """Publish `iteration` again and again, dying one step later each time, until it gets through."""
    for fatal in range(500):
        finish_training(plan, iteration)
        crash_at(fatal)
        try:
            publish(plan, iteration, os.environ, now=1.0)
        except Crash:
            restore()
            yield fatal
        else:
            restore()
            return
    pytest.fail("publishing never ended")


@pytest.mark.parametrize("start", ["a base model", "a version", "a user's folder", "a user's link"])
def test_a_crash_at_any_step_leaves_the_old_or_the_new_model(plan, tmp_path, start, crash_at, monkeypatch):
    if start == "a version":
        publish_iteration(plan, 1)
    elif start == "a user's folder":
        write_model(plan.paths.model_link, value=0.875)
    elif start == "a user's link":
        plan.paths.model_link.symlink_to(write_model(tmp_path / "outside", value=0.875))
    old, new = served_value(plan), 0.375

    crashes = 0
    for _ in every_crash(plan, 3, crash_at, monkeypatch.undo):
        assert served_value(plan) in (old, new)
        crashes += 1

    assert crashes > 20
    assert served_value(plan) == new
    leftovers = [path.name for path in plan.paths.checkpoints.iterdir() if path.name.endswith(".tmp")]
    assert leftovers == []
    assert not (plan.paths.log_path / "model.pt.tmp").exists()
