"""Continuing the optimizer: how many steps there are, and what stops it from going on."""

from pathlib import Path

import pytest

from rl_agent.trainer.llamafactory.optimizer.checkpoints import OptimizerState
from rl_agent.trainer.llamafactory.optimizer.optimizer import misfit, needs_reshape, update_steps
from rl_agent.trainer.llamafactory.render import TrainingSetup, deepspeed_file


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
def test_steps_of_an_update(trainer_of, samples, world_size, batch, accumulation, epochs, steps):
    config = trainer_of(
        f"trainer.per_device_train_batch_size={batch}",
        f"trainer.gradient_accumulation_steps={accumulation}",
        f"trainer.num_train_epochs={epochs}",
    )
    assert update_steps(samples, world_size, config) == steps


def test_max_steps_of_the_configuration_wins(trainer_of):
    assert update_steps(1000, 1, trainer_of("trainer.max_steps=3")) == 3


TORCH = OptimizerState(Path("/v"), 8, is_lora=False, deepspeed_ranks=0)
SHARDED = OptimizerState(Path("/v"), 8, is_lora=False, deepspeed_ranks=4)
SHARDED_LORA = OptimizerState(Path("/v"), 8, is_lora=True, deepspeed_ranks=4)


def setup(
    processes: int = 1, *, nodes: int = 1, uses_cpu: bool = False, deepspeed: bool = False, stage: int = 2
) -> TrainingSetup:
    settings = deepspeed_file(f"zero{stage}") if deepspeed else None
    return TrainingSetup(uses_cpu=uses_cpu, bf16=False, processes=processes, nodes=nodes, deepspeed=settings)


@pytest.mark.parametrize(
    ("progress", "overrides", "machine", "reason"),
    [
        (TORCH, (), setup(), ""),
        (TORCH, (), setup(2), ""),
        (TORCH, (), setup(uses_cpu=True), ""),
        (SHARDED, (), setup(4, deepspeed=True), ""),
        (SHARDED, (), setup(4, deepspeed=True, uses_cpu=True), ""),
        (TORCH, ("trainer.finetuning_type=lora",), setup(), "finetuning_type=lora differs"),
        (TORCH, ("trainer.lr_scheduler_type=cosine",), setup(), ""),
        (TORCH, ("trainer.lr_scheduler_type=reduce_lr_on_plateau",), setup(), "cannot be set back"),
        (TORCH, (), setup(deepspeed=True), "deepspeed was switched"),
        (SHARDED, (), setup(4), "deepspeed was switched"),
        (SHARDED, (), setup(2, deepspeed=True), ""),
        (SHARDED, (), setup(2, nodes=2, deepspeed=True), ""),
        (SHARDED, (), setup(2, nodes=3, deepspeed=True), ""),
        (SHARDED, (), setup(2, deepspeed=True, stage=3), "changed from 4 to 2"),
        (SHARDED_LORA, ("trainer.finetuning_type=lora",), setup(2, deepspeed=True), "changed from 4 to 2"),
        (TORCH, (), setup(2, uses_cpu=True), "several processes on a CPU"),
    ],
)
def test_changed_settings_keep_the_optimizer_from_going_on(trainer_of, progress, overrides, machine, reason):
    message = misfit(progress, trainer_of(*overrides), machine)
    assert reason in message
    assert bool(message) == bool(reason)


def test_an_interrupted_training_goes_on_also_where_updates_start_afresh(trainer_of):
    config = trainer_of("trainer.continue_optimizer=false")
    assert misfit(TORCH, config, setup()) == ""


@pytest.mark.parametrize(
    ("progress", "processes", "expected"), [(SHARDED, 4, False), (SHARDED, 3, True), (TORCH, 3, False)]
)
def test_only_shards_depend_on_the_number_of_processes(progress, processes, expected):
    assert needs_reshape(progress, setup(processes)) == expected
