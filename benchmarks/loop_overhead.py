"""Seconds of an iteration that are not engine start, generation or training.

    python benchmarks/loop_overhead.py [--iterations 5]

Runs the real `run.sh` in phase `both`, evaluating every iteration. The engine answers at once, and the
rollouts, the training and the publish are commands that only leave the files they must; so what is measured
is the driver: its verbs, process groups, checks, flags and engine stops. The start of the real verbs is
measured apart, as the time in which Python has imported them.
"""

import argparse
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REAL_VERBS = ("rollout", "prepare_update", "publish")

STUB = """#!/usr/bin/env bash
# The verbs that need a model, reduced to the files they leave; everything else is real.
log=${{RUN_DIR:-/}}/../..
if [[ $1 == -m && $2 == rl_agent.cli ]]; then
  case $3 in
    rollout)
      mkdir -p "$log/$9_trajectories"
      exec touch "$log/$9_trajectories/$9_trajectories.jsonl.iteration$7" ;;
    prepare-update) echo train.yaml; exit ;;
    train) exit ;;
    publish)
      version=$(printf 'checkpoints/version-%06d' "$7")
      mkdir -p "$log/$version"
      ln -sfn "$version" "$log/model.pt"
      echo "$version"; exit ;;
    wandb-sync) exec sleep 3600 ;;
    serve) exec {python} {root}/tests/shell/fake_verbs.py "${{@:3}}" ;;
  esac
fi
exec {python} "$@"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def prepare(home: Path) -> dict[str, str]:
    """Tasks, a model folder and the stub; returns the environment of the run."""
    for name in ("data", "model"):
        (home / name).mkdir()
    task = '{"task_id": "a", "prompt": "1 + 1 =", "answer": "2", "difficulty": "easy", "env": "math"}\n'
    for split in ("train", "test"):
        (home / "data" / f"{split}.jsonl").write_text(task)
    (home / "model" / "config.json").write_text("{}")
    (home / "model" / "model.safetensors").write_bytes(b"0")
    stub = home / "python"
    stub.write_text(STUB.format(python=sys.executable, root=ROOT))
    stub.chmod(0o755)
    ours = {"RL_AGENT_PYTHON": str(stub), "CUDA_VISIBLE_DEVICES": "", "FAKE_CALLS": str(home / "calls")}
    return {**os.environ, **ours}


def run_loop(home: Path, environ: dict[str, str], iterations: int) -> list[dict]:
    """The timeline of a run of that many iterations."""
    words = [
        *("bash", str(ROOT / "scripts" / "run.sh"), "--data-path", str(home / "data")),
        *("--log-path", str(home / "log"), "--rl-phase", "both", "--eval-interval", "1"),
        *("--max-iterations", str(iterations), f"engine.port={free_port()}"),
        f"model_config.base_model={home / 'model'}",
    ]
    subprocess.run(words, env=environ, check=True, stderr=subprocess.DEVNULL)
    return [json.loads(line) for line in (home / "log" / "timeline.jsonl").read_text().splitlines()]


def overheads(timeline: list[dict]) -> list[float]:
    """Seconds from the end of one update to the end of the next, without the engine's start."""
    ends = [span["end"] for span in timeline if span["name"] == "update"]
    starts = {s["iteration"]: s["end"] - s["start"] for s in timeline if s["name"] == "engine_start"}
    pairs = enumerate(itertools.pairwise(ends), start=2)
    return [end - before - starts[iteration] for iteration, (before, end) in pairs]


def import_seconds(verb: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import rl_agent.cli.{verb}"], check=True, cwd=ROOT)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=5, help="iterations to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        found = sorted(overheads(run_loop(home, prepare(home), options.iterations + 1)))
    imports = {verb: min(import_seconds(verb) for _ in range(3)) for verb in REAL_VERBS}
    print(f"{'seconds an iteration (both, with evaluation)':<48}{'median':>8}{'worst':>8}")
    print(f"{'driver: verbs, groups, flags, engine stop':<48}{found[len(found) // 2]:>8.2f}{found[-1]:>8.2f}")
    loaded = 2 * imports["rollout"] + imports["prepare_update"] + imports["publish"]
    print(f"{'start of the four real verbs (imports)':<48}{loaded:>8.2f}")


if __name__ == "__main__":
    main()
