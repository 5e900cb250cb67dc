"""Ours beside TRL: the quickstart's task and base model, reward against wall time and against samples.

    python benchmarks/trainer/trl_comparison.py [--seeds 0 1] [--iterations 4] [--steps 16] [--folder DIR]
        [--trl DIR] [--device cpu|cuda]

Both sides of a seed begin from the same model and have: 2,048 samples per iteration (256 tasks, 8 attempts),
cut into 16 optimizer steps; advantages normalised in their group, the ratio to the sampling policy clipped to
0.2, the mean over the tokens of a step, no KL; AdamW at 1e-4 after 10 steps of warm-up; temperature 1, 12
tokens; the same verifier; greedy evaluation on the same 400 tasks before each iteration and after the last.

What differs: TRL's GRPOTrainer samples with transformers in the process that trains, on all cores, and takes
turns; ours is scripts/run.sh with a real vLLM in a pool and a trainer beside it on the same cores, with all
that a run has (durable episodes, checkpoints, weights through the pool). Seconds begin when a side is
started, so they hold its imports and the engine's start; those of evaluations are left out.

TRL shuffles an iteration's samples over its steps, and so does ours here (`trainer.batch.order`): with whole
groups in order of arrival, which is nearly that of their length, a sample teaches less (step_order.py).

Seeds take turns in which side goes first. A side that is done is not run again: name another folder for
other settings. Several calls may share a folder if their seeds differ.

The environment's TRL is the one that LLaMA-Factory admits; `--trl DIR` takes a newer one for that side alone:
    pip install --no-deps --target DIR trl==1.16.0 datasets==5.2.0 multiprocess==0.70.19
"""

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.trainer.learning import prepare, read_accuracies, run, run_loop
from benchmarks.trainer.trl_training import GROUP_SIZE, GROUPS, LEARNING_RATE, SAMPLES
from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.system.flag_parser import FlagParser

OVERRIDES = (
    f"env_config.train_tasks_rollout_size={GROUPS}",
    f"rollout.group_size={GROUP_SIZE}",
    f"trainer.optimizer.learning_rate={LEARNING_RATE}",
    "trainer.loss.advantage=grpo",
    "trainer.loss.normalization=token_mean",
    "trainer.loss.proximal=behaviour",
    "trainer.loss.dual_clip=null",
    "trainer.batch.order=shuffled",
    "rollout.completion_threshold=1.0",
    "wandb.mode=disabled",
)
"""Additions to the experiment quickstart_grpo, which has the rest."""

CUDA_OVERRIDES = (
    "engine=gpu",
    "engine.dtype=float32",
    "engine.enforce_eager=true",
    "engine.max_model_len=128",
    "engine.max_num_seqs=256",
    "engine.gpu_memory_utilization=0.1",
    "+engine.extra_args.kv-cache-memory-bytes=268435456",
    "engine.memory_clear_mib=1000000",  # other seeds may run on the same GPU
    "trainer.placement=colocated",
    "trainer.parallel.precision=fp32",
    "trainer.parallel.use_liger_kernel=false",
)
"""Additions on a GPU, which trainer and engine share in turns."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that all seeds and both sides have in common."""

    iterations: int
    steps: int
    device: str
    trl: Path | None
    """Folder with another TRL than the environment's."""


@dataclass(frozen=True, slots=True)
class Point:
    """Success before an iteration, or after the last."""

    samples: int
    seconds: float
    accuracy: float
    reward_before: float | None
    """Mean of the samples since the point before."""


def run_trl(folder: Path, seed: int, settings: Settings) -> list[Point]:
    out = folder / "trl.jsonl"
    command: list[str | Path] = [sys.executable, PROJECT_ROOT / "benchmarks" / "trainer" / "trl_training.py"]
    command += ["--tasks", folder / "tasks", "--model", folder / "model", "--out", out]
    command += ["--iterations", str(settings.iterations), "--steps", str(settings.steps)]
    command += ["--seed", str(seed), "--device", settings.device]
    if settings.trl:
        paths = [str(settings.trl.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = ["env", f"PYTHONPATH={os.pathsep.join(paths)}", *command]
    run(command, folder / "trl.log")
    return [Point(**json.loads(line)) for line in out.read_text(encoding="utf-8").splitlines()]


def run_ours(folder: Path, seed: int, settings: Settings) -> list[Point]:
    started = time.time()
    overrides = [*OVERRIDES, f"trainer.mini_batches={settings.steps}"]
    overrides += CUDA_OVERRIDES if settings.device == "cuda" else []
    run_loop(folder, seed, settings.iterations, "quickstart_grpo", overrides, folder / "ours.log")
    paths = RunPaths(folder / "run")
    accuracies = read_accuracies(paths, settings.iterations)
    seconds, rewards = seconds_of_ours(paths.timeline, started, settings.iterations), rewards_of_ours(paths)
    return [
        Point(index * SAMPLES, seconds[index], accuracy, rewards.get(index))
        for index, accuracy in enumerate(accuracies)
    ]


def seconds_of_ours(
    timeline: Path, started: float, iterations: int, *, overlaps: bool = False
) -> list[float]:
    """Return the seconds until the first rollout began and until each iteration's version was there.

    Evaluations are left out, unless training rollouts run beside them (`overlaps`); then the first one begins
    with the first evaluation.
    """
    spans = [json.loads(line) for line in timeline.read_text(encoding="utf-8").splitlines()]
    evaluations = [span for span in spans if span["name"] == "evaluate"]
    left_out = [] if overlaps else evaluations

    def at(moment: float) -> float:
        paused = sum(min(s["end"], moment) - s["start"] for s in left_out if s["start"] < moment)
        return moment - started - paused

    rollouts = [span for span in spans if span["name"] == "rollout"]
    first = min(span["start"] for span in (rollouts + evaluations if overlaps else rollouts))
    ends = {s["iteration"]: s["end"] for s in spans if s["name"] == "update"}
    return [at(first), *(at(ends[iteration]) for iteration in range(1, iterations + 1))]


def rewards_of_ours(paths: RunPaths) -> dict[int, float]:
    """Mean reward of an iteration's training episodes."""
    return {
        int(record["iteration"]): float(record["train/reward_mean"])
        for record in metrics.read(paths.metrics)
        if "train/reward_mean" in record
    }


SIDES: dict[str, Callable[[Path, int, Settings], list[Point]]] = {"TRL": run_trl, "ours": run_ours}


def measure(done: Path, measured: Callable[[], list[Point]]) -> list[Point]:
    """Run one side of a seed, or read what it came to before."""
    if not done.exists():
        points = measured()
        done.write_text(json.dumps([asdict(point) for point in points]), encoding="utf-8")
    return [Point(**point) for point in json.loads(done.read_text(encoding="utf-8"))]


def rows(seed: int, side: str, points: Sequence[Point]) -> str:
    def row(point: Point) -> str:
        reward = "-" if point.reward_before is None else f"{point.reward_before:.3f}"
        numbers = f"{point.samples:7,d}  {point.seconds:7.0f}  {point.accuracy:8.3f}  {reward:>6}"
        return f"{seed:4d}  {side:4}  {numbers}"

    return "\n".join(map(row, points))


def summary(points_of: dict[tuple[int, str], list[Point]]) -> str:
    """A line a side: start-up, seconds of 2,048 samples, points gained; means over the seeds."""
    lines = ["side  seeds  start s  s/iteration  gain (points)  gain a minute"]
    for side in SIDES:
        runs = [points for (_, of), points in points_of.items() if of == side]
        count = len(runs)
        start = sum(points[0].seconds for points in runs) / count
        trained = sum(points[-1].seconds - points[0].seconds for points in runs) / count
        gain = 100 * sum(points[-1].accuracy - points[0].accuracy for points in runs) / count
        iterations = len(runs[0]) - 1
        lines.append(
            f"{side:4}  {count:5d}  {start:7.0f}  {trained / iterations:11.1f}  {gain:+13.1f}"
            f"  {60 * gain / trained:+13.1f}"
        )
    return "\n".join(lines)


def spread(points_of: dict[tuple[int, str], list[Point]]) -> str:
    """Render a line a row of samples: means and deviations of both sides, and their difference.

    The difference is paired, for both sides of a seed begin from one model; its error is the standard error
    of its mean.
    """
    lines = ["samples  TRL: accuracy  (sd)  ours: accuracy  (sd)   ours - TRL (standard error)"]
    seeds = sorted({seed for seed, _ in points_of})
    for index, point in enumerate(points_of[seeds[0], "TRL"]):
        of = {side: [100 * points_of[seed, side][index].accuracy for seed in seeds] for side in SIDES}
        apart = [ours - trl for ours, trl in zip(of["ours"], of["TRL"], strict=True)]
        error = statistics.stdev(apart) / math.sqrt(len(apart))
        columns = "  ".join(
            f"{statistics.mean(values):13.1f}  {statistics.stdev(values):4.1f}" for values in of.values()
        )
        lines.append(f"{point.samples:7,d}  {columns}   {statistics.mean(apart):+10.1f} ({error:.1f})")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--iterations", type=int, default=4, help="of 2,048 samples each (default: 4)")
    parser.add_argument("--steps", type=int, default=16, help="optimizer steps of an iteration (default: 16)")
    parser.add_argument("--folder", type=Path, default=PROJECT_ROOT / "outputs" / "trl")
    parser.add_argument("--trl", type=Path, metavar="DIR", help="a folder with another TRL")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of both sides")
    options = parser.parse_args(argv)
    settings = Settings(options.iterations, options.steps, options.device, options.trl)
    print("seed  side  samples  seconds  accuracy  reward")
    points_of: dict[tuple[int, str], list[Point]] = {}
    for number, seed in enumerate(options.seeds):
        folder = options.folder.resolve() / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, seed, folder / "prepare.log")
        for side in sorted(SIDES, reverse=number % 2 == 1):
            points_of[seed, side] = measure(
                folder / f"{side}.json", partial(SIDES[side], folder, seed, settings)
            )
            print(rows(seed, side, points_of[seed, side]), flush=True)
    print(summary(points_of))
    if len(options.seeds) > 1:
        print(spread(points_of))
    return 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
