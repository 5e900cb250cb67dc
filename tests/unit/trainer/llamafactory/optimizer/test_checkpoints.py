"""A folder of a training that holds a model to go on with is found."""

import json

import pytest

from rl_agent.trainer.llamafactory.optimizer.checkpoints import STATE, find_checkpoint


def leave(folder, step, *, state=None, weights=b"weights"):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(weights)
    (checkpoint / STATE).write_text(json.dumps({"global_step": step}) if state is None else state)
    return checkpoint


def test_the_newest_finished_checkpoint_is_found(tmp_path):
    leave(tmp_path, 9)
    assert find_checkpoint(tmp_path) is not None
    assert find_checkpoint(tmp_path).name == "checkpoint-9"
    newest = leave(tmp_path, 10)
    assert find_checkpoint(tmp_path) == newest


@pytest.mark.parametrize("damage", [{"state": ""}, {"state": "[]"}, {"state": "{}"}, {"weights": b""}])
def test_remains_of_a_checkpoint_on_a_failed_disk_are_passed_over(tmp_path, damage):
    leave(tmp_path, 20, **damage)
    assert find_checkpoint(tmp_path) is None
    whole = leave(tmp_path, 10)
    assert find_checkpoint(tmp_path) == whole
