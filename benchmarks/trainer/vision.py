"""A web agent that sees, trained by GRPO: asynchronously beside taking turns, on the same GPUs.

    python benchmarks/trainer/vision.py --gpus 0 --shape 2b      one GPU: engine and trainer share it
    python benchmarks/trainer/vision.py --gpus 0,1 --shape 2b    two: one trains, the other generates
    PYTHONPATH=$PWD/.venv/vision python benchmarks/trainer/vision.py --shape tiny --groups 4

Everything is what a user would start: `scripts/run.sh` with `trainer=grpo pool=elastic`, a real vLLM, and on
two GPUs `scripts/join_pool.sh`. An episode has several turns at a site that is as slow as the web
(`slow_site.py`). Each turn brings a screenshot of 1000 x 800 pixels that nobody has had before; the context
is the window of the newest images.

    sync     all GPUs generate the episodes of an iteration, then train on them: colocated, staleness 0
    async    both at once, rollouts --staleness versions behind the trainer: placement=shared on one GPU; on
             more, the first half trains (disaggregated) and each of the others is an engine

The model has a shape of Qwen3-VL or Qwen3.5 and random weights; responses end by chance (`stream_loop.py`):
this measures speed, never learning. A run does not come to its end: it is killed after the iterations that
count, so that each of them is followed by another. The first one, in which engines start, is left out.

Tokens are those trained on, prompts included. FLOPs are those of the model (`rl_agent.monitor.flops`); the
second MFU adds the vision tower's, which is frozen: forward alone, once for each screenshot. Engines have
nothing to do while no request runs at them, or while they sleep. An update lasts from the end of the
trainer's step until all engines serve it; the pool is asked ten times per second.
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.pool.image_requests import SHAPES, make_processor
from benchmarks.trainer.stream_loop import POLL_S, Bench, end_by_chance, start, stop, with_words
from benchmarks.trainer.stream_outcome import Outcome
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.monitor import metrics
from rl_agent.monitor.flops import ModelShape
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.system.flag_parser import FlagParser
from rl_agent.trainer.grpo.data.samples import Segment, make_group
from rl_agent.types import Trajectory

SIDES = ("sync", "async")
SIBLINGS = 4
WINDOW = 5
"""Images of a prompt, as `context.max_images` has it."""
IMAGE_TOKENS = 25 * 31
"""Tokens of a screenshot, one for 32 x 32 pixels; the tiny model has 4."""
LINE_TOKENS = 300
"""Most tokens of the line of an older step, whose words are spelled out."""
END_TIMEOUT_S = 60.0


def make_model(folder: Path, shape: str, mean_tokens: int, longest: int, device: torch.device) -> None:
    """Write a model whose responses end after `mean_tokens` on average, and never have an image's token."""
    from tiny_tokenizer import TURN_END
    from tiny_vision import MEDIA
    from transformers import AutoModelForImageTextToText

    config = make_processor(folder, shape, longest)
    path = folder / "tokenizer.json"
    state = with_words(json.loads(path.read_bytes()), config.text_config.vocab_size)
    path.write_text(json.dumps(state))
    ids = {token["content"]: token["id"] for token in state["added_tokens"]}
    torch.manual_seed(0)
    with device:
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    end_by_chance(model, ids[TURN_END], mean_tokens, never=[ids[token] for token in MEDIA])
    model.generation_config.eos_token_id = ids[TURN_END]
    model.to(torch.bfloat16 if device.type == "cuda" else torch.float32).save_pretrained(folder)


@dataclass
class Side(Bench):
    """One side's run, watched from outside and stopped after its last iteration that counts."""

    placement: str = "colocated"
    counted: int = 0
    """Iterations after which it is stopped; `iterations` are more, for a run's last one is like no other."""
    served_at: dict[int, float] = field(default_factory=dict)
    """The time at which all engines were first seen to serve a version."""

    @property
    def rented(self) -> int:
        return self.rentable if self.placement == "disaggregated" else 0

    @property
    def engines(self) -> int:
        return self.rented or 1

    def run_loop(self, layout: str, paths: RunPaths) -> None:
        port, log = free_port(), self.out / f"{layout}.log"
        rented: list[subprocess.Popen[bytes]] = []
        known = "disaggregated" if self.rented else "synchronous-all"
        loop = start(self.command(known, port, paths), log, self.visible(known))
        try:
            rented += [self.rent(layout, number, port) for number in range(self.rented)]
            while len(updates_of(paths)) < self.counted or max(self.served_at, default=0) < self.counted:
                if loop.poll() is not None:
                    raise SystemExit(f"the loop ended with {loop.returncode}; see {log}")
                self._look(port)
                time.sleep(POLL_S)
        finally:
            kill(loop, paths)
            for process in rented:
                stop(process)

    def _look(self, port: int) -> None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
                status = json.load(answer)
        except OSError:
            return
        ready = [engine for engine in status["engines"] if engine["state"] == "ready"]
        if ready:
            self.served_at.setdefault(min(engine["weight_version"] for engine in ready), time.time())


def kill(loop: subprocess.Popen[bytes], paths: RunPaths) -> None:
    """Kill the driver and wait for its guard to end the rest; told to stop, it would write a checkpoint."""
    if loop.poll() is None:
        os.killpg(loop.pid, signal.SIGKILL)
        loop.wait()
    deadline = time.monotonic() + END_TIMEOUT_S
    while any(paths.run_dir("").glob("*/groups/*/rank-*/*")) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def updates_of(paths: RunPaths) -> list[dict[str, Any]]:
    """Return the records of the iterations whose version is published."""
    return [record for record in metrics.read(paths.metrics) if "update/tokens" in record]


@dataclass(frozen=True, slots=True)
class Episodes:
    """An iteration's episodes, all of which were trained on."""

    seconds: list[float]
    steps: int
    segments: list[Segment]
    screenshots: int

    @classmethod
    def read(cls, paths: RunPaths, iteration: int, count: int) -> "Episodes":
        """Raise AssertionError unless all have a reward, and every screenshot is in a sequence."""
        episodes = list(read_iteration(paths, "train", iteration, TRAJECTORY))
        rewarded = sum(episode.reward is not None for episode in episodes)
        assert rewarded == count, f"iteration {iteration}: {rewarded} of {count} episodes have a reward"
        ordered = sorted(episodes, key=_group)
        groups = [make_group(siblings) for _, siblings in groupby(ordered, _group)]
        segments = [segment for group in groups for sample in group.samples for segment in sample.segments]
        steps = [step for episode in episodes for step in episode.steps]
        seen = {path for step in steps for path in step.observation.images}
        assert len(seen) == len(steps) > count, f"{len(seen)} screenshots in {len(steps)} turns"
        assert {path for segment in segments for path in segment.images} == seen, "images are missing"
        return cls([episode.duration_s for episode in episodes], len(steps), segments, len(seen))


def _group(episode: Trajectory) -> tuple[str, int]:
    return episode.key.task_id, episode.key.group


def figures_of(bench: Side, paths: RunPaths, config: Mapping[str, Any]) -> dict[str, float]:
    """Read what one side came to, its first iteration left out.

    Raises AssertionError where what was to be measured did not happen.
    """
    outcome = Outcome.of(paths.log_path.name, paths, bench.rented)
    updates = updates_of(paths)[: bench.counted]
    versions = [int(update["update/weight_version"]) for update in updates]
    assert versions == list(range(1, bench.counted + 1)), f"versions {versions}"
    iterations = [Episodes.read(paths, version, bench.groups * SIBLINGS) for version in versions[1:]]
    for update, episodes in zip(updates[1:], iterations, strict=True):
        assert update["update/tokens"] == sum(map(len, episodes.segments)), "not all was trained on"
    segments = [segment for episodes in iterations for segment in episodes.segments]
    responses = sum(int(segment.is_response.sum()) for segment in segments)
    screenshots = sum(episodes.screenshots for episodes in iterations)
    turns = sum(episodes.steps for episodes in iterations)
    lasted = sorted(seconds for episodes in iterations for seconds in episodes.seconds)
    shown = sum(len(segment.images) for segment in segments)
    image_tokens = sum(int((segment.token_ids == config["image_token_id"]).sum()) for segment in segments)

    steps = [record for record in metrics.read(paths.metrics) if "trainer/total_tokens" in record]
    ended = {int(record["iteration"]): float(record["time"]) for record in steps}
    steps = [record for record in steps if record["iteration"] in versions[1:]]
    seconds = sum(outcome.seconds[1 : bench.counted])
    tokens = sum(map(len, segments))

    def total(name: str) -> float:
        return float(sum(record.get(f"trainer/{name}", 0.0) for record in steps))

    busy_s = total("seconds/gradient") + total("seconds/update")
    shape, of_tower = ModelShape.of(config), math.nan
    if shape is not None and shape.tower is not None:  # or those of recurrent layers, which are not counted
        of_tower = screenshots * shape.tower.flops(shape.tower.merged_patches * image_tokens // shown)
    engines_busy_s = total("engines_up_s") - total("engines_idle_s")
    known = [record for record in steps if "trainer/mfu" in record]
    peak = known[0]["trainer/tflops_per_s_per_device"] * 1e12 / known[0]["trainer/mfu"] if known else math.nan
    flops = total("flops") or math.nan
    mfu = 100 * flops / busy_s / outcome.training / peak
    differences = [record["trainer/logprob_difference"] for record in steps]
    served_at = bench.served_at
    served = [min(served_at[w] for w in served_at if w >= v) - ended[v] for v in versions[1:]]
    return {
        "tokens/s": tokens / seconds,
        "s per iteration": seconds / len(iterations),
        "tokens per iteration": tokens / len(iterations),
        "sampled tokens/s": responses / seconds,
        "tokens of a response": responses / turns,
        "screenshots/s": screenshots / seconds,
        "tokens of a screenshot": image_tokens / shown,
        "median episode, s": lasted[len(lasted) // 2],
        "longest episode, s": lasted[-1],
        "trainer waits, %": 100 * total("seconds/waiting") / seconds,
        "tokens/s while it computes": tokens / busy_s,
        "  MFU, %": mfu,
        "  MFU with the tower, %": mfu * (1 + of_tower / flops),
        "  the tower's share of FLOPs, %": 100 * of_tower / (of_tower + flops),
        "engines have nothing to do, %": 100 * (1 - engines_busy_s / seconds / bench.engines),
        "s per update: computed, then served": sum(served) / len(served),
        "logprobs: engine's less trainer's, x 1e6": 1e6 * sum(differences) / len(differences),
    }


def print_table(results: Mapping[str, Mapping[str, float]]) -> None:
    """Print a line for each figure, and the ratio of the sides."""
    print(f"{'':36}" + "".join(f"{side:>12}" for side in results))
    for name in next(iter(results.values())):
        print(f"{name:36}" + "".join(f"{figures[name]:12,.1f}" for figures in results.values()))
    for side in results if "sync" in results else ():
        if side != "sync":
            ratio = results[side]["tokens/s"] / results["sync"]["tokens/s"]
            print(f"{side} beside sync: {ratio:.2f}x the tokens/s", flush=True)


def main() -> None:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--gpus", help="one or more, with commas; default: the CPU")
    parser.add_argument("--sides", choices=SIDES, nargs="+", default=list(SIDES))
    parser.add_argument(
        "--placement", choices=("shared", "disaggregated"), help="of async; default: see above"
    )
    parser.add_argument(
        "--staleness", type=int, nargs="+", default=[1], help="of async, once for each; default: 1"
    )
    parser.add_argument("--iterations", type=int, nargs=2, default=(3, 6), help="of sync and of async")
    parser.add_argument("--groups", type=int, default=16, help=f"of {SIBLINGS} episodes per iteration")
    parser.add_argument("--turns", type=int, nargs=2, default=(4, 8), help="fewest and most of an episode")
    parser.add_argument(
        "--mean-turns", type=float, help="turns are geometric with this mean (default: each number as likely)"
    )
    parser.add_argument("--pauses", type=float, help="factor of the site's pauses (default: 1; tiny: 0.1)")
    parser.add_argument("--mean", type=int, help="tokens of a response (default: 100; tiny: 12)")
    parser.add_argument("--out", type=Path, help="model, logs, and what is not run again; default: temporary")
    parser.add_argument("overrides", nargs="*", help="key=value for run.sh, of both sides")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    with tempfile.TemporaryDirectory(prefix="vision-") as folder:
        measure(options, (options.out or Path(folder)).resolve())


def measure(options: Any, out: Path) -> None:
    """Make the model and the tasks, run both sides, and print a table after each."""
    is_tiny = options.shape == "tiny"
    gpus = options.gpus.split(",") if options.gpus else []
    mean = options.mean or (12 if is_tiny else 100)
    longest = 4 * mean
    image_tokens = 4 if is_tiny else IMAGE_TOKENS
    context = WINDOW * (image_tokens + longest + 64) + options.turns[1] * LINE_TOKENS + longest
    (out / "screenshots").mkdir(parents=True, exist_ok=True)
    if not (out / "model").exists():
        device = torch.device("cuda", int(gpus[0])) if gpus else torch.device("cpu")
        make_model(out / "model", options.shape, mean, context, device)
        if gpus:
            torch.cuda.empty_cache()
    config = json.loads((out / "model" / "config.json").read_bytes())
    pauses = options.pauses or (0.1 if is_tiny else 1.0)
    trained = {"turns": list(options.turns), "mean_turns": options.mean_turns, "pauses": pauses}
    write_tasks(out / "train.jsonl", options.groups, trained)
    write_tasks(out / "test.jsonl", 1, {"turns": [1, 1], "pauses": 0.0})
    results: dict[str, dict[str, float]] = {}
    apart = options.placement or ("disaggregated" if len(gpus) > 1 else "shared")
    runs = {"sync": ("colocated", 0)} | {f"async {n}": (apart, n) for n in options.staleness}
    for side in (side for side in runs if side.split()[0] in options.sides):
        done = out / f"{side}.json"
        if not done.exists():
            placement, staleness = runs[side]
            words = words_of(options, out, longest, placement, staleness)
            counted = options.iterations[side != "sync"]
            sizes = (options.groups, context - 128, counted + 100)
            bench = Side(out, *sizes, gpus, max(len(gpus) // 2, 1), (1.0, 1.0), words, [], placement, counted)
            paths = RunPaths(out / side.replace(" ", "-"))
            bench.run_loop(paths.log_path.name, paths)
            done.write_text(json.dumps(figures_of(bench, paths, config)))
        results[side] = json.loads(done.read_bytes())
        print_table(results)


def words_of(options: Any, out: Path, longest: int, placement: str, staleness: int) -> list[str]:
    """Return what the run has other than those of `stream_loop.py`."""
    site = "benchmarks.trainer.slow_site:SlowSite"
    words = [
        f"+env_config.kinds.site={site}",
        f"env_config.kwargs={{site: {{folder: {out / 'screenshots'}}}}}",
        f"env_config.server_size={options.groups * SIBLINGS}",
        f"env_config.train_difficulty_max_steps={{easy: {options.turns[1]}}}",
        f"rollout.group_size={SIBLINGS}",
        f"rollout.max_vllm_sessions={options.groups * SIBLINGS}",
        f"policy_config.max_new_tokens={longest}",
        f"context.max_images={WINDOW}",
        f"context.response_tokens={longest}",
        f"trainer.placement={placement}",
        f"trainer.streamed={str(placement != 'colocated').lower()}",
        f"trainer.batch.max_staleness={staleness}",
        "trainer.checkpoint.every=1000",
        "trainer.checkpoint.every_steps=1000",
        "trainer.checkpoint.keep=1",  # none is written, but the plan wants room for them
        "page.port=off",
    ]
    if options.gpus:
        share = {"colocated": 0.5, "shared": 0.4, "disaggregated": 0.85}[placement]
        words += [
            f"engine.gpu_memory_utilization={share}",
            f"engine.max_num_seqs={options.groups * SIBLINGS}",
        ]
        words += ["trainer.parallel.activation_checkpointing=null", "trainer.parallel.offload_optimizer=null"]
    given = {word.partition("=")[0] for word in options.overrides}
    return [*(word for word in words if word.partition("=")[0] not in given), *options.overrides]


def write_tasks(path: Path, count: int, fields: Mapping[str, Any]) -> None:
    tasks = ({"task_id": f"site-{n}", "prompt": "Reach the goal.", "env": "site"} for n in range(count))
    path.write_text("".join(json.dumps(task | {"difficulty": "easy"} | fields) + "\n" for task in tasks))


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
