"""A checkpoint that is not as it was written is not trained on: the one before it is."""

import shutil
import threading
from pathlib import Path

import pytest
import torch

from rl_agent.errors import ConfigError, StoreError
from rl_agent.trainer.grpo.checkpoint.states import newest_served, saved_steps
from rl_agent.trainer.grpo.model.model_files import load_policy
from rl_agent.trainer.grpo.model.parallel import Ranks, shard, whole
from rl_agent.trainer.grpo.trainer import Trainer
from tests.integration.tiny_model import make_tiny_model
from tests.integration.trainer.model.tiny_vision import vision_policy
from tests.integration.trainer.samples import random_groups
from tests.integration.trainer.settings import trainer_settings
from tests.integration.trainer.step.test_order import Arriving

ITERATIONS = 3


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "model")


def train(
    ranks: Ranks, base: Path, output: Path, *, start: Path | None = None, served: str = ""
) -> tuple[dict[str, torch.Tensor], list[int]]:
    """Train to the last iteration, each of one step; returns the weights, and the iterations trained on."""
    settings = trainer_settings(base, output, groups=2, batch={"max_staleness": 99})
    policy = load_policy(settings, ranks)
    trainer = Trainer(settings, ranks, policy, None)
    trainer.served = served
    steps = []
    try:
        trainer.resume(start)
        while trainer.iteration < ITERATIONS:
            steps.append(trainer.iteration + 1)
            source = Arriving(random_groups(2, turns=1, seed=steps[-1]))
            assert trainer.train_iteration(steps[-1], source, next_version=steps[-1])
            trainer.save_at_times()
    finally:
        trainer.close()
    return {name: whole(p.detach()).clone() for name, p in policy.named_parameters()}, steps


@pytest.fixture(scope="module")
def trained(alone, base, tmp_path_factory) -> tuple[Path, dict[str, torch.Tensor]]:
    output = tmp_path_factory.mktemp("trained")
    weights, steps = train(alone, base, output)
    assert steps == [1, 2, 3]
    return output, weights


def flip(file: Path) -> None:
    """One bit in the middle of it."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()  # a hard link keeps what it has
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["tensors/*", "groups.bin", "rank-0.json", "state.json"])
def test_a_flipped_bit_sets_a_checkpoint_aside_for_the_one_before(
    alone, base, trained, tmp_path, name, caplog
):
    whole_run, expected = trained
    shutil.copytree(whole_run, tmp_path, dirs_exist_ok=True)
    checkpoints = tmp_path / "checkpoints"
    (file,) = (checkpoints / "step-3").glob(name)
    flip(file)
    weights, steps = train(alone, base, tmp_path, served="version-000007")
    assert steps == [3]
    assert all(torch.equal(weights[n], expected[n]) for n in expected)
    assert f"step-3/{file.relative_to(checkpoints / 'step-3')}: differs from what was written" in caplog.text
    assert list(saved_steps(checkpoints)) == [2, 3]
    assert (checkpoints / "damaged-step-3").is_dir()
    assert newest_served(checkpoints) == "version-000007"  # the next start goes on from here, too


def test_where_all_are_damaged_nothing_is_trained(alone, base, trained, tmp_path):
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    for folder in saved_steps(tmp_path / "checkpoints").values():
        flip(folder / "groups.bin")
    with pytest.raises(StoreError, match="damaged-step-2: is damaged, and there is no checkpoint before it"):
        train(alone, base, tmp_path)


def test_the_checkpoint_of_a_model_is_read_only_as_it_was_written(alone, base, trained, tmp_path):
    start = tmp_path / "version-000001" / "trainer"
    shutil.copytree(trained[0] / "checkpoints" / "step-3", start)
    assert train(alone, base, tmp_path / "whole", start=start)[1] == []
    (tensors,) = (start / "tensors").iterdir()
    flip(tensors)
    with pytest.raises(StoreError, match=r"trainer: is damaged; `rollback` to the version before, or remove"):
        train(alone, base, tmp_path / "damaged", start=start)


@pytest.mark.parametrize("was_frozen", [True, False], ids=["frozen before", "trained before"])
def test_a_checkpoint_goes_on_only_with_the_tower_as_it_was(alone, base, tmp_path, was_frozen):
    settings = trainer_settings(base, tmp_path, groups=2)

    def begin(*, is_frozen: bool) -> Trainer:
        policy = vision_policy("qwen3_vl", freeze_vision_tower=is_frozen)
        shard(policy, alone, settings.parallel)
        trainer = Trainer(settings, alone, policy, None)
        try:
            trainer.resume()
            if not trainer.iteration:
                assert trainer.train_iteration(1, Arriving(random_groups(2, turns=1)), next_version=1)
                trainer.save()
        finally:
            trainer.close()
        return trainer

    begin(is_frozen=was_frozen)
    assert begin(is_frozen=was_frozen).iteration == 1
    key = f"trainer.freeze_vision_tower={str(was_frozen).lower()}"
    with pytest.raises(ConfigError, match=f"was made with {key}; go on with that, or begin anew"):
        begin(is_frozen=not was_frozen)


def test_what_follows_a_checkpoint_is_done_while_training_goes_on(alone, base, tmp_path):
    settings = trainer_settings(base, tmp_path, groups=2, batch={"max_staleness": 99})
    trainer = Trainer(settings, alone, load_policy(settings, alone), None)
    trained_on, seen = threading.Event(), []

    def follow(folder: Path) -> None:
        assert trained_on.wait(60)
        seen.append((folder.name, list(saved_steps(tmp_path / "checkpoints"))))

    trainer.resume()
    for iteration in (1, 2):
        source = Arriving(random_groups(2, turns=1, seed=iteration))
        assert trainer.train_iteration(iteration, source, next_version=iteration)
        if iteration == 1:
            trainer.save()
            trainer.after_save(follow)
    trained_on.set()
    trainer.save()  # waits for both
    assert seen == [("step-1", [1])]
    trainer.after_save(lambda _: (tmp_path / "absent").rmdir())
    with pytest.raises(FileNotFoundError):
        trainer.wait_saved()
    trainer.close()
