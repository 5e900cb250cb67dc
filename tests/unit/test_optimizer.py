"""Continuing the optimizer: the new steps, the new learning rate, and no change to what is published."""

import json
from pathlib import Path

import pytest

from rl_agent.errors import ConfigError
from rl_agent.update.optimizer import Progress, find_progress, obstacle, resume_folder, update_steps
from rl_agent.update.render import Setup
from tests.integration.tiny_model import make_plan
from tests.unit.optimizer_states import write_optimizer_state


def trainer(tmp_path: Path, *overrides: str):
    return make_plan(tmp_path / "log", tmp_path / "base", *overrides).config.trainer


@pytest.mark.parametrize(
    ("samples", "world_size", "batch", "accumulation", "epochs", "steps"),
    [
        (100, 1, 32, 1, 2, 8),
        (137, 1, 32, 1, 2, 10),
        (54, 1, 8, 2, 2, 8),
        (77, 1, 8, 2, 2, 10),
        (1, 1, 32, 4, 1, 1),
        (1, 8, 32, 4, 3, 3),
        (33, 2, 8, 1, 1, 3),
        (100, 1, 10, 1, 0.5, 5),
        (100, 1, 10, 3, 0.5, 2),
    ],
)
def test_steps_of_an_update(tmp_path, samples, world_size, batch, accumulation, epochs, steps):
    config = trainer(
        tmp_path,
        f"trainer.per_device_train_batch_size={batch}",
        f"trainer.gradient_accumulation_steps={accumulation}",
        f"trainer.num_train_epochs={epochs}",
    )
    assert update_steps(samples, world_size, config) == steps


def test_max_steps_of_the_configuration_wins(tmp_path):
    assert update_steps(1000, 1, trainer(tmp_path, "trainer.max_steps=3")) == 3


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = write_optimizer_state(tmp_path / "version" / "trainer")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def load(path: Path) -> dict:
    import torch

    return torch.load(path, weights_only=True)


def test_progress_is_read_from_a_checkpoint(state):
    assert find_progress(state) == Progress(state, 8, is_lora=False, deepspeed_ranks=0)
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


TORCH = Progress(Path("/v"), 8, is_lora=False, deepspeed_ranks=0)
SHARDED = Progress(Path("/v"), 8, is_lora=False, deepspeed_ranks=4)


def setup(processes: int = 1, *, nodes: int = 1, uses_cpu: bool = False, deepspeed: bool = False) -> Setup:
    return Setup(
        uses_cpu=uses_cpu,
        bf16=False,
        processes=processes,
        nodes=nodes,
        deepspeed=Path("/zero2.json") if deepspeed else None,
    )


@pytest.mark.parametrize(
    ("progress", "overrides", "machine", "reason"),
    [
        (TORCH, (), setup(), ""),
        (TORCH, (), setup(2), ""),
        (TORCH, (), setup(uses_cpu=True), ""),
        (SHARDED, (), setup(4, deepspeed=True), ""),
        (SHARDED, (), setup(4, deepspeed=True, uses_cpu=True), ""),
        (TORCH, ("trainer.continue_optimizer=false",), setup(), "continue_optimizer is false"),
        (None, (), setup(), "without an optimizer's state"),
        (TORCH, ("trainer.finetuning_type=lora",), setup(), "finetuning_type=lora differs"),
        (TORCH, ("trainer.lr_scheduler_type=cosine",), setup(), ""),
        (TORCH, ("trainer.lr_scheduler_type=reduce_lr_on_plateau",), setup(), "cannot be set back"),
        (TORCH, (), setup(deepspeed=True), "deepspeed was switched"),
        (SHARDED, (), setup(4), "deepspeed was switched"),
        (SHARDED, (), setup(2, deepspeed=True), "changed from 4 to 2"),
        (SHARDED, (), setup(2, nodes=2, deepspeed=True), ""),
        (SHARDED, (), setup(2, nodes=3, deepspeed=True), "changed from 4 to 6"),
        (TORCH, (), setup(2, uses_cpu=True), "several processes on a CPU"),
    ],
)
def test_what_stops_the_optimizer_from_going_on(tmp_path, progress, overrides, machine, reason):
    said = obstacle(progress, trainer(tmp_path, *overrides), machine)
    assert reason in said
    assert bool(said) == bool(reason)


def test_the_resumed_state_takes_its_intervals_from_the_configuration(state, tmp_path):
    config = trainer(
        tmp_path, "trainer.save_steps=0.5", "trainer.logging_steps=2", "trainer.learning_rate=0.001"
    )
    target = resume_folder(
        find_progress(state), tmp_path / "resume", config, new_steps=11, old_learning_rate=1e-3
    )
    resumed = json.loads((target / "trainer_state.json").read_bytes())
    assert resumed["global_step"] == 8
    assert (resumed["save_steps"], resumed["logging_steps"], resumed["log_history"]) == (6, 2, [])
    assert json.loads((state / "trainer_state.json").read_bytes())["save_steps"] == 500


def test_an_unchanged_learning_rate_shares_every_state_file(state, tmp_path):
    config = trainer(tmp_path, "trainer.learning_rate=0.001")
    target = resume_folder(
        find_progress(state), tmp_path / "resume", config, new_steps=1, old_learning_rate=1e-3
    )
    for name in ("optimizer.pt", "scheduler.pt", "model.safetensors"):
        assert (target / name).samefile(state / name)


def test_a_changed_learning_rate_counts_from_the_first_step(state, tmp_path):
    before = {name: (state / name).read_bytes() for name in ("optimizer.pt", "scheduler.pt")}
    config = trainer(tmp_path, "trainer.learning_rate=0.0002")
    progress = find_progress(state)
    for _ in range(2):  # a repeated preparation starts from the published state again
        target = resume_folder(progress, tmp_path / "resume", config, new_steps=1, old_learning_rate=1e-3)

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
def test_a_decaying_schedule_is_set_back_to_its_start_and_the_moments_go_on(
    state, tmp_path, warmup_steps, first_rate
):
    config = trainer(
        tmp_path,
        "trainer.lr_scheduler_type=cosine",
        "trainer.learning_rate=0.0005",
        f"trainer.warmup_steps={warmup_steps}",
    )
    target = resume_folder(
        find_progress(state), tmp_path / "resume", config, new_steps=4, old_learning_rate=1e-3
    )
    resumed = json.loads((target / "trainer_state.json").read_bytes())
    assert (resumed["global_step"], resumed["epoch"]) == (0, 0)
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
    target = resume_folder(
        find_progress(state), tmp_path / "resume", no_warmup, new_steps=4, old_learning_rate=1e-3
    )
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


def test_a_pickle_that_runs_code_is_refused(state, tmp_path):
    import torch

    class Harm:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harm",))

    torch.save({"base_lrs": [0.001], "harm": Harm()}, state / "scheduler.pt")
    config = trainer(tmp_path, "trainer.learning_rate=0.0002")
    with pytest.raises(ConfigError, match=r"scheduler\.pt: is no readable state"):
        resume_folder(find_progress(state), tmp_path / "resume", config, new_steps=1, old_learning_rate=1e-3)
    assert not (tmp_path / "harm").exists()
