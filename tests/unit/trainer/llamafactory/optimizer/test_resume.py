"""The folder that Trainer resumes from: the new steps and rates, and no change to what is published."""

import json
from pathlib import Path

import pytest

from rl_agent.errors import ConfigError
from rl_agent.trainer.llamafactory.optimizer.checkpoints import OptimizerState, find_progress
from rl_agent.trainer.llamafactory.optimizer.resume import resume_folder
from tests.integration.tiny_model import make_plan
from tests.unit.trainer.llamafactory.optimizer.optimizer_states import write_optimizer_state


def trainer(tmp_path: Path, *overrides: str):
    return make_plan(tmp_path / "log", tmp_path / "base", *overrides).config.trainer


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = write_optimizer_state(tmp_path / "version" / "trainer")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def resumed_from(state: Path, config, *, at: int, new_steps: int) -> Path:
    target = state.parent.parent / "resume"
    progress = find_progress(state)
    return resume_folder(progress, target, config, at=at, new_steps=new_steps, old_learning_rate=1e-3)


def load(path: Path) -> dict:
    import torch

    return torch.load(path, weights_only=True)


def test_the_resumed_state_takes_its_intervals_from_the_configuration(state, tmp_path):
    config = trainer(
        tmp_path, "trainer.save_steps=0.5", "trainer.logging_steps=2", "trainer.learning_rate=0.001"
    )
    target = resumed_from(state, config, at=8, new_steps=11)
    resumed = json.loads((target / "trainer_state.json").read_bytes())
    assert resumed["global_step"] == 8
    assert (resumed["save_steps"], resumed["logging_steps"], resumed["log_history"]) == (6, 2, [])
    assert json.loads((state / "trainer_state.json").read_bytes())["save_steps"] == 500


def test_an_unchanged_learning_rate_shares_every_state_file(state, tmp_path):
    config = trainer(tmp_path, "trainer.learning_rate=0.001")
    target = resumed_from(state, config, at=8, new_steps=1)
    for name in ("optimizer.pt", "scheduler.pt", "model.safetensors"):
        assert (target / name).samefile(state / name)


def test_a_changed_learning_rate_counts_from_the_first_step(state, tmp_path):
    before = {name: (state / name).read_bytes() for name in ("optimizer.pt", "scheduler.pt")}
    config = trainer(tmp_path, "trainer.learning_rate=0.0002")
    progress = find_progress(state)
    for _ in range(2):  # a repeated preparation starts from the published state again
        target = resume_folder(
            progress, tmp_path / "resume", config, at=8, new_steps=1, old_learning_rate=1e-3
        )

    group = load(target / "optimizer.pt")["param_groups"][0]
    assert group["lr"] == pytest.approx(0.0002)
    assert group["initial_lr"] == pytest.approx(0.0002)
    schedule = load(target / "scheduler.pt")
    assert schedule["base_lrs"] == pytest.approx([0.0002])
    assert schedule["last_epoch"] == 8
    moments = load(target / "optimizer.pt")["state"][0]
    assert moments["step"] == 8
    assert moments["exp_avg"].tolist() == load(state / "optimizer.pt")["state"][0]["exp_avg"].tolist()
    assert {name: (state / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(("warmup_steps", "first_rate"), [(0, 0.0005), (5, 0.0)])
def test_a_decaying_schedule_restarts_and_the_moments_continue(state, tmp_path, warmup_steps, first_rate):
    config = trainer(
        tmp_path,
        "trainer.lr_scheduler_type=cosine",
        "trainer.learning_rate=0.0005",
        f"trainer.warmup_steps={warmup_steps}",
    )
    target = resumed_from(state, config, at=0, new_steps=4)
    resumed = json.loads((target / "trainer_state.json").read_bytes())
    assert resumed["global_step"] == 0
    schedule = load(target / "scheduler.pt")
    assert (schedule["last_epoch"], schedule["_step_count"]) == (0, 1)
    assert schedule["base_lrs"] == pytest.approx([0.0005])
    assert schedule["_last_lr"] == pytest.approx([first_rate])
    optimizer = load(target / "optimizer.pt")
    assert optimizer["param_groups"][0]["lr"] == pytest.approx(first_rate)
    assert optimizer["param_groups"][0]["initial_lr"] == pytest.approx(0.0005)
    assert optimizer["state"][0]["step"] == 8
    assert json.loads((state / "trainer_state.json").read_bytes())["global_step"] == 8


def test_a_schedule_that_was_set_back_runs_through_its_whole_curve(state, tmp_path):
    """Torch's own schedule, loaded from the folder, gives the rates of a fresh one."""
    import torch

    def curve(step: int) -> float:
        return 1.0 - step / 4

    config = trainer(tmp_path, "trainer.lr_scheduler_type=linear", "trainer.learning_rate=0.001")
    no_warmup = config.model_copy(update={"warmup_steps": 0})
    target = resumed_from(state, no_warmup, at=0, new_steps=4)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([{"params": [weight], "lr": 0.001}], lr=0.001)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, curve)
    optimizer.load_state_dict(load(target / "optimizer.pt"))
    schedule.load_state_dict(load(target / "scheduler.pt"))
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        weight.sum().backward()
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.001, 0.00075, 0.0005, 0.00025])


def test_a_place_in_the_schedule_leaves_the_rates_and_the_moments(state, tmp_path):
    config = trainer(tmp_path, "trainer.lr_scheduler_type=cosine", "trainer.learning_rate=0.001")
    before = load(state / "scheduler.pt")
    target = resumed_from(state, config, at=5, new_steps=9)
    schedule = load(target / "scheduler.pt")
    assert (schedule["last_epoch"], schedule["_step_count"]) == (5, 6)
    assert (schedule["base_lrs"], schedule["_last_lr"]) == (before["base_lrs"], before["_last_lr"])
    assert json.loads((target / "trainer_state.json").read_bytes())["global_step"] == 5
    assert (target / "optimizer.pt").samefile(state / "optimizer.pt")


def test_a_resume_folder_can_be_made_from_itself(state, tmp_path):
    config = trainer(tmp_path, "trainer.learning_rate=0.001")
    target = tmp_path / "resume"
    for at in (8, 6):
        source = find_progress(target) if target.exists() else find_progress(state)
        resume_folder(source, target, config, at=at, new_steps=9, old_learning_rate=1e-3)
    assert find_progress(target) == OptimizerState(target, 6, is_lora=False, deepspeed_ranks=0)
    assert (target / "optimizer.pt").samefile(state / "optimizer.pt")
    assert [path.name for path in tmp_path.glob("resume*")] == ["resume"]


def test_a_pickle_that_runs_code_is_refused(state, tmp_path):
    import torch

    class Harm:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harm",))

    torch.save({"base_lrs": [0.001], "harm": Harm()}, state / "scheduler.pt")
    config = trainer(tmp_path, "trainer.learning_rate=0.0002")
    with pytest.raises(ConfigError, match=r"scheduler\.pt: is no readable state"):
        resumed_from(state, config, at=8, new_steps=1)
    assert not (tmp_path / "harm").exists()
