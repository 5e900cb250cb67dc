"""Every benchmark that needs neither a GPU nor a real engine runs once at toy size, and measures something.

What a row says is not looked at: a busy machine decides no test. A benchmark itself stops when what it claims
to measure did not happen. Of those with a real engine the one of a vision agent runs on a CPU, too.
"""

import os
import re
import subprocess
import sys

import pytest

from rl_agent.paths import PROJECT_ROOT
from tests.integration.training.vision_packages import vision_environment

TOY_RUNS = {
    "pool/relay.py --only simulated --concurrency 4 --rounds 1 --times 1 --tokens 32": r"^manager +closed ",
    "pool/scale.py --engines 8 --requests 64": r"^ +8 +64 ",
    "rollout/lockstep.py --episodes 16 --baseline-episodes 8 --places 4 --max-steps 2": r"^asynchronous ",
    "rollout/overhead.py --episodes 200": r"^collector, real store ",
}
"""Command line of each, and a line that its table has to contain."""
SLOW_TOY_RUNS = {
    "cluster/chaos.py --runs 0": r"an undisturbed run takes ",  # the gate has runs of a simulated cluster
    "cluster/loop_overhead.py --nodes 1 --iterations 1": r"^ +1 +\d+\.\d\d ",
    "page/scale.py --episodes 100 --screenshots 10": r"baseline: reading the store instead",
    "pool/what_if.py --models 8b --hours 1": r"^8b +elastic ",
    "trainer/shared_prompts.py --case 100:16 --groups 2 --repeats 1": r"\| once \| 455 ",
    "trainer/throughput.py --token-budget 512 --micro-batches 1": r"^\| transformers ",
    "weights/transfer.py --gb 0.05 --repeats 1": r"^transfer ",
}
MEASURED, MISSED, LACKS_A_PROGRAM = 0, 1, 69
"""Exit statuses: the goal was reached, a busy machine was too slow for it, or there is no browser."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", TOY_RUNS)
def test_a_benchmark_prints_its_table_at_toy_size(command):
    printed = run(command)

    assert re.search(TOY_RUNS[command], printed, re.MULTILINE), printed


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", SLOW_TOY_RUNS)
def test_a_slow_benchmark_prints_its_table_at_toy_size(command):
    printed = run(command, timeout_s=800)

    assert re.search(SLOW_TOY_RUNS[command], printed, re.MULTILINE), printed


@pytest.mark.extended
@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_the_benchmark_of_a_vision_agent_compares_both_sides_at_toy_size(tmp_path):
    environ = {**os.environ, **vision_environment(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    printed = run("trainer/vision.py --groups 2 --iterations 2 3", environ, timeout_s=1100)

    assert re.search(r"^async 1 beside sync: \d", printed, re.MULTILINE), printed


def run(command: str, environ: dict[str, str] | None = None, *, timeout_s: float = 280) -> str:
    """Return what a benchmark prints; one that this machine lacks a program for is skipped."""
    script, *words = command.split()
    argv = [sys.executable, str(PROJECT_ROOT / "benchmarks" / script), *words]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode == LACKS_A_PROGRAM:
        pytest.skip(done.stderr[-300:])
    assert done.returncode in (MEASURED, MISSED), done.stderr[-4000:]
    assert "Traceback" not in done.stderr, done.stderr[-4000:]
    return done.stdout
