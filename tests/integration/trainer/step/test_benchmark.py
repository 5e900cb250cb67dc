"""The benchmark of the trainer runs on a CPU, and counts tokens and FLOPs as it says."""

import os
import subprocess
import sys

import pytest

from rl_agent.paths import PROJECT_ROOT

sys.path.insert(0, str(PROJECT_ROOT / "benchmarks" / "trainer"))

import throughput as benchmark
from transformers import Qwen3Config

pytestmark = pytest.mark.extended


def run(script: str, *arguments: str) -> list[list[str]]:
    """Run a script of benchmarks/trainer; returns the rows of its tables."""
    argv = [sys.executable, f"benchmarks/trainer/{script}", *arguments]
    environment = os.environ | {"PYTHONPATH": str(PROJECT_ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        argv, cwd=PROJECT_ROOT, env=environment, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_it_prints_both_ways_over_the_same_tokens():
    rows = run("throughput.py", "--token-budget", "512", "--micro-batches", "1")
    assert [row[0] for row in rows] == ["what", "---", "ours", "ours, update", "transformers"]


def test_a_shared_prompt_is_computed_once_with_the_same_numbers():
    rows = run("shared_prompts.py", "--case", "100:16", "--groups", "2", "--repeats", "1")
    computed = {row[1]: int(row[2].replace(",", "")) for row in rows[2:4]}
    assert computed["a copy each"] - computed["once"] >= 14 * 100
    assert [row[1:3] for row in rows[6:]] == [["fp32", "a copy each"], ["fp32", "once"]]


def test_flops_are_six_per_weight_and_token_for_short_sequences():
    config = Qwen3Config(**benchmark.SHAPES["8b"])
    groups = benchmark.episodes(config, 50, 40, 30, seed=0)
    tokens = sum(map(len, benchmark.segments_of(groups)))
    scored = sum(int(segment.is_response.sum()) for segment in benchmark.segments_of(groups))
    head = 151_936 * 4096
    in_layers = 8_190_735_360 - 2 * head  # parameters of Qwen3-8B, less embedding and output matrix
    expected = 6 * (tokens * in_layers + scored * head)
    assert benchmark.model_flops(config, groups) == pytest.approx(expected, rel=1e-3)
