"""The benchmarks of the trainer run on a CPU, and count tokens as they say."""

import os
import subprocess
import sys

import pytest

from rl_agent.paths import PROJECT_ROOT

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
