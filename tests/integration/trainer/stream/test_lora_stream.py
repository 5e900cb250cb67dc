"""A streaming trainer with an adapter: engines get it merged or alone, a crash changes nothing."""

import signal

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from rl_agent.served_model import versions
from rl_agent.system.files import remove
from rl_agent.trainer.grpo.checkpoint.states import saved_steps
from rl_agent.weights.format.adapter import BASE, A, B, adapter_layers, base_digest, is_adapter
from rl_agent.weights.store.tensor_sources import files_in
from tests.integration.trainer.settings import lora_settings
from tests.integration.trainer.stream.stream_run import (
    GROUPS,
    Rollout,
    Trainer,
    make_uniform_model,
    manager,
    stream_settings,
)
from tests.integration.trainer.stream.test_stream import (
    again,
    assert_served,
    fetch,
    wait_for_model,
    wait_until,
)
from tests.unit.weights.weight_versions import state_of

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]


def assert_adds_up(told: dict, base, paths: RunPaths, root) -> None:
    """The announced adapter, added to the base model, is the model at `model.pt`."""
    snapshot = fetch(told, root)
    assert is_adapter(snapshot.manifest)
    tensors, before = state_of(snapshot), load_file(base / "model.safetensors")
    after = load_file(paths.model_link / "model.safetensors")
    layers = adapter_layers(snapshot.manifest.tensors)
    assert {f"{layer}.weight" for layer in layers} == {n for n in before if n.endswith("_proj.weight")}
    for layer in layers:
        sum_of_both = before[f"{layer}.weight"].float() + tensors[layer + B] @ tensors[layer + A]
        assert torch.allclose(sum_of_both, after[f"{layer}.weight"], rtol=0, atol=1e-6)


def train(
    log_path, base, *, kill: bool, ranks: int = 1, publish: str = "merged"
) -> list[dict[str, torch.Tensor]]:
    """The models of two iterations; `kill` is between them."""
    log_path.mkdir()
    paths, rollout = RunPaths(log_path), Rollout(log_path)
    with manager() as told:
        settings = stream_settings(log_path, base, told.url, last_iteration=2)
        settings = settings.model_copy(update={"lora": lora_settings(rank=4, publish=publish)})
        trainer = Trainer(settings, ranks=ranks)
        rollout.whole(1, version=0)
        trainer.wait_for_iteration(1)
        wait_for_model(paths)
        if publish == "merged":
            assert_served(told.newest(), paths, log_path / "engine")
        else:
            assert_adds_up(told.newest(), base, paths, log_path / "engine")
        if kill:
            trainer.end(signal.SIGKILL)
            # As a run would: the adapter goes on top of the base model, whatever is served by now.
            trainer = Trainer(again(settings, paths).model_copy(update={"model": base}), ranks=ranks)
        rollout.whole(2, version=1)
        assert [process.wait(120) for process in trainer.processes] == [0] * ranks
    return [load_file(paths.version_dir(version) / "model.safetensors") for version in (1, 2)]


def adapter_settings(log_path, base, manager_url, **changes):
    settings = stream_settings(log_path, base, manager_url, last_iteration=2, **changes)
    return settings.model_copy(update={"lora": lora_settings(rank=4, publish="adapter")})


def test_an_adapter_is_for_the_files_that_its_trainer_loaded(tmp_path):
    base, rollout = make_uniform_model(tmp_path / "base", head=1e-4), Rollout(tmp_path)
    before = base_digest(files_in(base), threads=1)
    with manager() as told:
        trainer = Trainer(adapter_settings(tmp_path, base, told.url))
        rollout.whole(1, version=0)
        trainer.wait_for_iteration(1)
        file = base / "model.safetensors"
        save_file(load_file(file), file, metadata={"format": "pt", "by": "another download"})
        rollout.whole(2, version=1)
        snapshot = fetch(told.wait_for(2), tmp_path / "engine")
        assert [process.wait(120) for process in trainer.processes] == [0]
    assert bytes(state_of(snapshot)[BASE].tolist()) == before != base_digest(files_in(base), threads=1)


@pytest.mark.parametrize(("proximal", "number"), [("iteration", 1), ("current", 2)])
def test_a_start_within_an_iteration_serves_what_it_began_with(tmp_path, proximal, number):
    """Version 1 is at model.pt; the checkpoint is from after the first step of the second iteration.

    Where that has not kept the weights that the iteration began with, its own get a new number.
    """
    base, rollout = make_uniform_model(tmp_path / "base", head=1e-4), Rollout(tmp_path)
    paths = RunPaths(tmp_path)
    with manager() as told:
        settings = adapter_settings(tmp_path, base, told.url)
        loss = settings.loss.model_copy(update={"proximal": proximal})
        settings = settings.model_copy(update={"loss": loss})
        trainer = Trainer(settings)
        rollout.whole(1, version=0)
        trainer.wait_for_iteration(1)
        wait_for_model(paths)
        growing = rollout.begin(2)
        for group in range(2):
            rollout.group(growing, 2, group, version=1)
        wait_until(lambda: max(saved_steps(settings.output / "checkpoints"), default=0) >= 3, trainer)
        trainer.end()  # as where a node joins
        first = told.newest()
        told.heard.clear()
        trainer = Trainer(again(settings, paths).model_copy(update={"model": base}))
        trainer.wait_for_iteration(1)  # the same run: what was published is served on
        trainer.end(signal.SIGKILL)
        assert {heard["digest"] for heard in told.heard} == {first["digest"]}
        told.heard.clear()
        remove(settings.stream.store)  # that of a resumed run is another one
        trainer = Trainer(again(settings, paths).model_copy(update={"model": base}))
        resumed = told.wait_for(1)
        for group in range(2, GROUPS):
            rollout.group(growing, 2, group, version=1)
        rollout.end(growing, 2)
        assert [process.wait(120) for process in trainer.processes] == [0], trainer.log.read_text()[-3000:]
    assert (first["weight_version"], resumed["weight_version"]) == (1, number)
    assert (first["digest"] == resumed["digest"]) == (number == 1)
    assert told.newest()["weight_version"] == number + 1
    names = [f"version-{version:06}" for version in (number + 1, 1)]
    assert [folder.name for folder in versions.history(paths)] == names
    lines = [record for record in metrics.read(paths.metrics) if "update/steps" in record]
    assert [(line["iteration"], line["update/steps"]) for line in lines] == [(1, 2), (2, 2)]


def test_killed_between_iterations_it_ends_with_the_weights_of_an_unkilled(tmp_path):
    base = make_uniform_model(tmp_path / "base", head=1e-4)
    whole, killed = (train(tmp_path / name, base, kill=name == "killed") for name in ("whole", "killed"))
    for expected, actual in zip(whole, killed, strict=True):
        assert all(torch.equal(expected[name], actual[name]) for name in expected)
    first, second = whole
    before = load_file(base / "model.safetensors")
    trained = {name for name in before if not torch.equal(before[name].float(), second[name].float())}
    assert trained == {name for name in before if name.endswith("_proj.weight")}
    assert all(not torch.equal(first[name], second[name]) for name in trained)
    model = AutoModelForCausalLM.from_pretrained(versions.served_folder(RunPaths(tmp_path / "whole")))
    assert torch.equal(model.state_dict()["model.layers.0.mlp.up_proj.weight"],
                       second["model.layers.0.mlp.up_proj.weight"])  # fmt: skip
    sharded = train(tmp_path / "sharded", base, kill=True, ranks=2, publish="adapter")
    for expected, actual in zip(whole, sharded, strict=True):
        assert all(torch.allclose(expected[name], actual[name], rtol=0, atol=2e-5) for name in expected)
