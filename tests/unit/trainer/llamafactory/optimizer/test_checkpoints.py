"""A folder of a training that holds a model to go on with is found, and its optimizer's state is read."""

import json

import pytest

from rl_agent.trainer.llamafactory.optimizer.checkpoints import (
    STATE,
    OptimizerState,
    find_checkpoint,
    find_progress,
)


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


def test_progress_is_read_from_a_checkpoint(state):
    assert find_progress(state) == OptimizerState(state, 8, is_lora=False, deepspeed_ranks=0)
    (state / "adapter_config.json").write_text("{}")
    assert find_progress(state).is_lora


def test_progress_of_deepspeed_counts_its_shards(state):
    (state / "optimizer.pt").unlink()
    shards = state / "global_step8"
    shards.mkdir()
    for rank in range(4):
        (shards / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    assert find_progress(state).deepspeed_ranks == 4


@pytest.mark.parametrize("missing", ["optimizer.pt", "scheduler.pt", "trainer_state.json"])
def test_an_incomplete_state_is_none(state, missing):
    (state / missing).unlink()
    assert find_progress(state) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}"])
def test_a_state_whose_step_cannot_be_read_is_none(state, damage):
    (state / "trainer_state.json").write_text(damage)
    assert find_progress(state) is None
