"""Updates with the real LLaMA-Factory on a tiny model: from trajectories to what is served, twice."""

import json
import math
from pathlib import Path

import pytest

from rl_agent.config.plan import Plan
from rl_agent.monitor import metrics
from rl_agent.trainer.llamafactory.inputs import read_summary
from tests.integration.tiny_model import make_plan, make_tiny_model
from tests.integration.training.training import assert_serves, collect, optimizer_steps, tensors_of, update

pytestmark = pytest.mark.timeout(300)


def test_two_full_updates_continue_the_optimizer_and_serve_what_they_made(tmp_path):
    base = make_tiny_model(tmp_path / "base model")
    log_path = tmp_path / "log path ü"
    settings = [
        "trainer.per_device_train_batch_size=8",
        "trainer.gradient_accumulation_steps=2",
        "trainer.warmup_steps=0",
        "trainer.do_eval=true",
        "trainer.val_split_ratio=0.1",
    ]
    first_plan = make_plan(log_path, base, "trainer.learning_rate=0.001", *settings)
    collect(first_plan, 1, 60)
    first, first_log = update(first_plan, 1)
    before = steps_of(first_plan, 1, samples=60)
    assert [line["current_steps"] for line in first_log] == list(range(1, before + 1))

    second_plan = make_plan(log_path, base, "trainer.learning_rate=0.0005", *settings)
    collect(second_plan, 2, 25)
    second, second_log = update(second_plan, 2)
    steps = steps_of(second_plan, 2, samples=85)
    assert [line["current_steps"] for line in second_log] == list(range(before + 1, before + steps + 1))
    assert optimizer_steps(first) == {before}
    assert optimizer_steps(second) == {before + steps}

    losses = [line["loss"] for line in first_log + second_log]
    assert all(map(math.isfinite, losses))
    assert second_log[0]["loss"] < first_log[0]["loss"] - 0.5
    assert losses[-1] < second_log[0]["loss"]
    assert {line["lr"] for line in first_log} == {0.001}
    assert {line["lr"] for line in second_log} == {0.0005}

    assert_serves(second, base)
    assert_steps_match_the_learning_rate(first, second, steps=steps, learning_rate=0.0005)
    records = list(metrics.read(second_plan.paths.metrics))
    numbers = [record for record in records if "update/loss" in record]
    assert [n["update/total_steps"] for n in numbers] == [before, before + steps]
    assert all(math.isfinite(n["update/eval_loss"]) for n in numbers)
    lines = [record for record in records if "update_step/loss" in record]
    assert [line["update_step"] for line in lines] == list(range(1, before + steps + 1))
    assert [line["update_step/loss"] for line in lines] == pytest.approx(losses)
    assert all(line["update_step/grad_norm"] > 0 for line in lines)


def steps_of(plan: Plan, iteration: int, *, samples: int) -> int:
    """Count the steps of an update: batches of 8, two of them a step, 2 epochs, without what is held out."""
    summary = read_summary(plan.paths.update_dir(iteration))
    assert summary.samples + summary.validation_samples == samples
    assert 0 < summary.validation_samples < samples / 3
    return 2 * math.ceil(math.ceil(summary.samples / 8) / 2)


def assert_steps_match_the_learning_rate(old: Path, new: Path, *, steps: int, learning_rate: float) -> None:
    """Adam moves a value by about the learning rate a step; twice as far would be the old rate."""
    before, after = tensors_of(old), tensors_of(new)
    farthest = max(float(abs(after[name] - before[name]).max()) for name in before)
    assert 0.3 * steps * learning_rate < farthest < 1.6 * steps * learning_rate


@pytest.mark.extended
def test_lora_continues_its_adapter_and_serves_a_merged_model(tmp_path):
    base = make_tiny_model(tmp_path / "base")
    plan = make_plan(
        tmp_path / "log",
        base,
        "trainer.finetuning_type=lora",
        "trainer.learning_rate=0.005",
        "trainer.warmup_steps=0",
        "trainer.num_train_epochs=4",
    )
    collect(plan, 1, 60)
    first, first_log = update(plan, 1)
    collect(plan, 2, 30)
    second, second_log = update(plan, 2)

    assert second_log[0]["current_steps"] == first_log[-1]["current_steps"] + 1
    assert second_log[0]["loss"] < first_log[0]["loss"] - 0.1
    assert optimizer_steps(second) == {second_log[-1]["current_steps"]}
    assert_serves(first, base)
    assert_serves(second, base)
    adapter = json.loads((second / "trainer" / "adapter_config.json").read_bytes())
    assert adapter["base_model_name_or_path"] == str(base)


@pytest.mark.extended
def test_a_decaying_schedule_runs_anew_in_each_update_with_the_old_moments(tmp_path):
    base = make_tiny_model(tmp_path / "base")
    plan = make_plan(
        tmp_path / "log",
        base,
        "trainer.lr_scheduler_type=cosine",
        "trainer.learning_rate=0.001",
        "trainer.warmup_steps=0",
        "trainer.max_steps=4",
    )
    collect(plan, 1, 60)
    _, first_log = update(plan, 1)
    second, second_log = update(plan, 2)

    rates = [[line["lr"] for line in log] for log in (first_log, second_log)]
    assert rates[0] == pytest.approx([0.001, 0.00085355, 0.0005, 0.00014645], rel=1e-4)
    assert rates[1] == rates[0]
    assert optimizer_steps(second) == {8}
    assert second_log[-1]["loss"] < first_log[-1]["loss"]
    steps = [line["update_step"] for line in metrics.read(plan.paths.metrics) if "update_step" in line]
    assert steps == list(range(1, 9))


@pytest.mark.extended
def test_the_loss_of_an_update_counts_steps_after_its_last_regular_line(tmp_path):
    plan = make_plan(
        tmp_path / "log", make_tiny_model(tmp_path / "base"), "trainer.max_steps=4", "trainer.logging_steps=3"
    )
    collect(plan, 1, 20)
    _, log = update(plan, 1)

    assert [line["current_steps"] for line in log] == [3, 4]
    (record,) = (line for line in metrics.read(plan.paths.metrics) if "update/loss" in line)
    assert record["update/loss"] == pytest.approx((3 * log[0]["loss"] + log[1]["loss"]) / 4)
