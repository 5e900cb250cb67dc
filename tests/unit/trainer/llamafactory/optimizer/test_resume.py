"""The folder that Trainer resumes from: the new steps and rates, and no change to what is published."""

import json
from pathlib import Path

import pytest

from rl_agent.errors import ConfigError
from rl_agent.trainer.llamafactory.optimizer.checkpoints import OptimizerState, find_progress
from rl_agent.trainer.llamafactory.optimizer.resume import resume_folder


@pytest.fixture
def resumed(state, tmp_path, trainer_of):
    """Return a maker of the folder that a training resumes from."""

    def resume(*words, at: int, new_steps: int, source: Path = state) -> Path:
        config = trainer_of(*(f"trainer.{word}" for word in words))
        rest = {"at": at, "new_steps": new_steps, "old_learning_rate": 1e-3}
        return resume_folder(find_progress(source), tmp_path / "resume", config, **rest)

    return resume


def trainer_state(folder: Path) -> dict:
    return json.loads((folder / "trainer_state.json").read_bytes())


def load(path: Path) -> dict:
    import torch

    return torch.load(path, weights_only=True)


def test_the_resumed_state_takes_its_intervals_from_the_configuration(state, resumed):
    target = resumed("save_steps=0.5", "logging_steps=2", "learning_rate=0.001", at=8, new_steps=11)
    new = trainer_state(target)
    assert new["global_step"] == 8
    assert (new["save_steps"], new["logging_steps"], new["log_history"]) == (6, 2, [])
    assert trainer_state(state)["save_steps"] == 500


def test_an_unchanged_learning_rate_shares_every_state_file(state, resumed):
    target = resumed("learning_rate=0.001", at=8, new_steps=1)
    for name in ("optimizer.pt", "scheduler.pt", "model.safetensors"):
        assert (target / name).samefile(state / name)


def test_a_changed_learning_rate_counts_from_the_first_step(state, resumed):
    before = {name: (state / name).read_bytes() for name in ("optimizer.pt", "scheduler.pt")}
    for _ in range(2):  # a repeated preparation starts from the published state again
        target = resumed("learning_rate=0.0002", at=8, new_steps=1)

    optimizer, schedule = load(target / "optimizer.pt"), load(target / "scheduler.pt")
    group = optimizer["param_groups"][0]
    assert (group["lr"], group["initial_lr"]) == pytest.approx((0.0002, 0.0002))
    assert schedule["base_lrs"] == pytest.approx([0.0002])
    moments = optimizer["state"][0]
    assert moments["step"] == schedule["last_epoch"] == 8
    assert moments["exp_avg"].tolist() == load(state / "optimizer.pt")["state"][0]["exp_avg"].tolist()
    assert {name: (state / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(("warmup_steps", "first_rate"), [(0, 0.0005), (5, 0.0)])
def test_a_decaying_schedule_restarts_and_the_moments_continue(state, resumed, warmup_steps, first_rate):
    words = ("lr_scheduler_type=cosine", "learning_rate=0.0005", f"warmup_steps={warmup_steps}")
    target = resumed(*words, at=0, new_steps=4)
    assert trainer_state(target)["global_step"] == 0
    schedule = load(target / "scheduler.pt")
    assert (schedule["last_epoch"], schedule["_step_count"]) == (0, 1)
    assert schedule["base_lrs"] == pytest.approx([0.0005])
    assert schedule["_last_lr"] == pytest.approx([first_rate])
    optimizer = load(target / "optimizer.pt")
    group = optimizer["param_groups"][0]
    assert (group["lr"], group["initial_lr"]) == pytest.approx((first_rate, 0.0005))
    assert optimizer["state"][0]["step"] == 8
    assert trainer_state(state)["global_step"] == 8


def test_a_schedule_that_was_set_back_runs_through_its_whole_curve(resumed):
    """Torch's own schedule, loaded from the folder, gives the rates of a fresh one."""
    import torch

    words = ("lr_scheduler_type=linear", "learning_rate=0.001", "warmup_steps=0")
    target = resumed(*words, at=0, new_steps=4)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([{"params": [weight], "lr": 0.001}], lr=0.001)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / 4)
    optimizer.load_state_dict(load(target / "optimizer.pt"))
    schedule.load_state_dict(load(target / "scheduler.pt"))
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        weight.sum().backward()
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.001, 0.00075, 0.0005, 0.00025])


def test_a_place_in_the_schedule_leaves_the_rates_and_the_moments(state, resumed):
    before = load(state / "scheduler.pt")
    target = resumed("lr_scheduler_type=cosine", "learning_rate=0.001", at=5, new_steps=9)
    schedule = load(target / "scheduler.pt")
    assert (schedule["last_epoch"], schedule["_step_count"]) == (5, 6)
    assert (schedule["base_lrs"], schedule["_last_lr"]) == (before["base_lrs"], before["_last_lr"])
    assert trainer_state(target)["global_step"] == 5
    assert (target / "optimizer.pt").samefile(state / "optimizer.pt")


def test_a_resume_folder_can_be_made_from_itself(state, resumed, tmp_path):
    target = resumed("learning_rate=0.001", at=8, new_steps=9)
    resumed("learning_rate=0.001", at=6, new_steps=9, source=target)
    assert find_progress(target) == OptimizerState(target, 6, is_lora=False, deepspeed_ranks=0)
    assert (target / "optimizer.pt").samefile(state / "optimizer.pt")
    assert [path.name for path in tmp_path.glob("resume*")] == ["resume"]


def test_a_pickle_that_runs_code_is_refused(state, resumed, tmp_path):
    import torch

    class Harm:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harm",))

    torch.save({"base_lrs": [0.001], "harm": Harm()}, state / "scheduler.pt")
    with pytest.raises(ConfigError, match=r"scheduler\.pt: is no readable state"):
        resumed("learning_rate=0.0002", at=8, new_steps=1)
    assert not (tmp_path / "harm").exists()
