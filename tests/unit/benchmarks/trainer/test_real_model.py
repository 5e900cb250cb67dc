"""The comparison on a real model configures both sides alike and counts what it says it counts."""

from pathlib import Path

import pytest

from benchmarks.trainer.real_model import Settings, overrides, table, verdicts
from benchmarks.trainer.real_model_trl import (
    GROUP_SIZE,
    async_settings,
    grpo_settings,
    is_right,
    reward,
)
from benchmarks.trainer.trl_comparison import Point
from rl_agent.config.overrides.words import parse_override
from rl_agent.env.math import MathEnvironment
from rl_agent.env.verifier_worker import make_math
from rl_agent.plan.compose import compose_config
from rl_agent.types import Task


def settings(*gpus):
    return Settings(Path("model"), None, gpus, 10, groups=64, steps=2, learning_rate=1e-5, eval_interval=5)


@pytest.mark.parametrize("gpus", [(), ("0",), ("0", "1")])
def test_our_side_has_the_samples_steps_and_rate_of_trl(gpus, tmp_path):
    words = [
        parse_override(w, "test") for w in ("+experiment=quickstart_smollm2", *overrides(settings(*gpus), 1))
    ]
    config = compose_config(words, data_path=tmp_path, log_path=tmp_path, num_gpus=min(len(gpus), 1)).config
    assert config.env_config.train_tasks_rollout_size * config.rollout.group_size == 512
    assert config.grpo.mini_batches == 2
    assert config.grpo.optimizer.learning_rate == 1e-5
    assert config.grpo.loss.kl_in == "none"
    assert config.grpo.batch.max_staleness == 1
    assert settings(*gpus).evaluated == [0, 5, 10]


def trl_options(tmp_path, device):
    class Options:
        out, groups, steps, iterations, learning_rate = tmp_path / "trl.jsonl", 64, 2, 10, 1e-5
        seed, url = 0, "http://127.0.0.1:1"

    Options.device = device
    return Options


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("make", [grpo_settings, async_settings])
def test_both_trainers_of_trl_make_steps_of_256_samples(make, device, tmp_path):
    words = make(trl_options(tmp_path, device))
    assert words["per_device_train_batch_size"] * words["gradient_accumulation_steps"] == 256
    assert words["max_steps"] == 20
    assert words["num_generations"] == GROUP_SIZE
    if make is grpo_settings:
        assert words["per_device_train_batch_size"] * words["steps_per_generation"] == 512


RESPONSES = [
    "10 + 38 = 48",
    "48",
    "The answer is 48.",
    "10 + 38 = 47",
    "10 + 38",
    "To add 10 and 38, we",
    r"\boxed{48}",
    "",
]


@pytest.mark.parametrize("response", RESPONSES)
def test_the_verdict_beside_trl_is_that_of_the_environment(response):
    task = Task("a", "10 + 38?", "math", "easy", answer="48")
    request = MathEnvironment().request(task, response)
    assert is_right(response, "48") == (make_math()(request["response"], request) == 1)


def test_a_response_without_the_end_of_its_turn_earns_nothing():
    assert reward(["48", "48"], [[20, 24, 2], [20, 24]], answer=["48", "48"]) == [1.0, 0.0]


def test_gains_are_counted_per_sample_and_per_minute():
    runs = {
        ("sums", "ours"): [[Point(0, 60.0, 0.2, None), Point(5000, 180.0, 0.5, 0.4)]] * 2,
        ("sums", "TRL"): [
            [Point(0, 30.0, 0.2, None), Point(5000, 270.0, 0.4 + seed, 0.4)] for seed in (0, 0.1)
        ],
    }
    _, ours, trl = table(runs).splitlines()
    reward = ["40.0", "(0.0)"]
    assert ours.split() == [
        "sums",
        "ours",
        "2",
        "20.0",
        "50.0",
        "(0.0)",
        *reward,
        "+6.0",
        "60",
        "2.00",
        "+15.0",
    ]
    assert trl.split() == ["sums", "TRL", "2", "20.0", "45.0", "(5.0)", *reward, "+5.0", "30", "4.00", "+6.2"]
    verdict = "ours - TRL +5.0 points (standard error 5.0); 2.00x TRL's samples per minute"
    assert verdicts(runs) == f"sums: after equal samples {verdict}"
