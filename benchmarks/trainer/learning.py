"""Checks that the loop teaches: the quickstart's model and task, several seeds, everything real.

    python benchmarks/trainer/learning.py [--agent text|web] [--trainer llamafactory|grpo] [--seeds 0 1 2 3 4]
        [--iterations N] [--folder DIR] [key=value ...]

Each seed has tasks, a base model and a run of its own. The loop evaluates the served model before it trains,
and once more after the last update. Accuracy is the share of the held-out test tasks that greedy decoding
solves. Of a web agent, base model and trained one are evaluated at temperature 1, too, and the pages that
ask for what no lesson had are counted apart. A seed counts only if its run earned rewards, made each update,
completed each episode and, with GRPO on web pages, lost an engine to a kill and got another one. A seed
that is done is not run again, and one that was interrupted goes on: call it again with the same folder.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.rollout.trajectories.shard import read_shard
from rl_agent.system.flag_parser import FlagParser

ACCURACY = "test/success_rate"
EXPERIMENTS = {
    "llamafactory": "quickstart",
    "grpo": "quickstart_grpo",
    "web-llamafactory": "quickstart_web",
    "web-grpo": "quickstart_web_grpo",
}
EVAL_INTERVALS = {"web-grpo": 3}  # as scripts/quickstart.sh has them; 1 where nothing is said
ITERATIONS = {"llamafactory": 4, "grpo": 6, "web-llamafactory": 2, "web-grpo": 6}
WANTED_GAIN = 15.0
"""Points between the first and the last evaluation."""
WANTED_SHARE = 0.8
"""Share of the seeds that must gain: four of five."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one seed."""

    seed: int
    accuracies: list[float]
    """Accuracy of the base model, then after each update."""
    seconds: float
    """Seconds of the call that finished it, tasks and base model included."""
    sampled: list[float] = field(default_factory=list)
    """Accuracy at temperature 1 of a web agent's base model, and of the trained one."""
    untaught: list[tuple[int, int]] = field(default_factory=list)
    """Solved pages of the goal that no lesson had, and all pages of it, by the base model and the trained
    one.
    """

    @property
    def gain(self) -> float:
        return 100 * (self.accuracies[-1] - self.accuracies[0])

    @property
    def is_enough(self) -> bool:
        return self.gain >= WANTED_GAIN


def run(command: Sequence[str | Path], log: Path, environ: dict[str, str] | None = None) -> None:
    """Run a command, its output appended to `log`. Raises SystemExit if it fails."""
    with log.open("a", encoding="utf-8") as output:
        status = subprocess.run(
            list(map(str, command)), stdout=output, stderr=output, env=environ, check=False
        ).returncode
    if status != 0:
        raise SystemExit(f"exit {status} from {' '.join(map(str, command))}; see {log}")


def prepare(folder: Path, seed: int, log: Path) -> None:
    """Make the seed's tasks and base model; returns at once for those that are there."""
    data = PROJECT_ROOT / "data"
    scripts = {"tasks": ["make_tasks.py", "quickstart"], "model": ["teach_base_model.py"]}
    for name, (script, *preset) in scripts.items():
        run([sys.executable, data / script, *preset, "--out", folder / name, "--seed", str(seed)], log)


def run_quickstart(
    folder: Path, seed: int, iterations: int, trainer: str, overrides: Sequence[str], log: Path
) -> None:
    """Run the whole web quickstart, which goes on by itself where it was interrupted."""
    command = ["bash", PROJECT_ROOT / "scripts" / "quickstart.sh", "--agent", "web", "--trainer", trainer]
    command += ["--out", folder, "--seed", str(seed), "--iterations", str(iterations)]
    run([*command, *overrides], log)


def sample(
    folder: Path, name: str, model: Path, seed: int, experiment: str, overrides: Sequence[str], log: Path
) -> float:
    """Return the accuracy of a web agent's model at temperature 1, from a run of this name."""
    paths = RunPaths(folder / name)
    command: list[str | Path] = ["bash", PROJECT_ROOT / "scripts" / "run.sh", "--data-path", folder / "tasks"]
    command += ["--log-path", paths.log_path, "--rl-phase", "rollout", "--rollout-split", "eval-only"]
    command += ["--max-iterations", "1", f"+experiment={experiment}", f"model_config.base_model={model}"]
    path = [str(PROJECT_ROOT / ".venv" / "vision"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}  # where the quickstart puts image packages
    if not list(metrics.read(paths.metrics)):
        run([*command, "policy_config.test_temperature=1.0", f"seed={seed}", *overrides], log, environ)
    return next(record[ACCURACY] for record in metrics.read(paths.metrics) if ACCURACY in record)


def count_untaught(paths: RunPaths, iteration: int) -> tuple[int, int]:
    """Return how many pages with the goal that no lesson has were solved in an evaluation, of how many."""
    sys.path.insert(0, str(PROJECT_ROOT / "data"))
    from web_lessons import UNTAUGHT

    rewards = [
        trajectory.reward
        for shard in paths.shards("test", iteration)
        for trajectory in read_shard(shard)[1]
        if UNTAUGHT in trajectory.steps[0].observation.text
    ]
    return sum(reward >= 1 for reward in rewards), len(rewards)


def is_engine_replaced(paths: RunPaths) -> bool:
    """Return whether the pool lost a ready engine that fell silent, and another one was ready afterwards."""
    files = sorted(paths.log_path.glob("runs/*/pool-*.history.jsonl"))
    changes = [change for file in files for change in metrics.read(file) if "state" in change]
    ready = {change["id"]: change["at"] for change in changes if change["state"] == "ready"}
    return any(
        change["state"] == "gone"
        and change["reason"].startswith("its lease")
        and change["id"] in ready
        and max(ready.values()) > change["at"]
        for change in changes
    )


def check_run(folder: Path, iterations: int) -> None:
    """Raise SystemExit unless a run has done what it is to show, besides the gain."""
    paths = RunPaths(folder / "run")
    records = list(metrics.read(paths.metrics))
    rollouts = [record for record in records if "train/episodes" in record]
    lost = [
        (record["iteration"], split)
        for record in records
        for split in ("train", "test")
        if record.get(f"{split}/completed_share", 1.0) < 1
    ]
    updates = {record["iteration"] for record in records if "update/loss" in record}
    missing = {
        "no episode has earned a reward": not any(record["train/success_rate"] for record in rollouts),
        f"updates are missing: there are those of {sorted(updates)}": len(updates) != iterations,
        f"episodes were lost: {lost}": bool(lost),
        "no engine was killed while it served, or none joined afterwards": (folder / "spot.csv").exists()
        and not is_engine_replaced(paths),
    }
    for words, is_so in missing.items():
        if is_so:
            raise SystemExit(f"{folder}: {words}")


def run_loop(
    folder: Path,
    seed: int,
    iterations: int,
    experiment: str,
    overrides: Sequence[str],
    log: Path,
    *,
    eval_interval: int = 1,
) -> None:
    """Run the loop of an experiment with its closing evaluation, or what is left of it."""
    command: list[str | Path] = ["bash", PROJECT_ROOT / "scripts" / "run.sh"]
    command += ["--data-path", folder / "tasks", "--log-path", folder / "run"]
    settings = [
        f"+experiment={experiment}",
        f"model_config.base_model={(folder / 'model').resolve()}",  # vLLM's cache of compiled code goes by it
        f"seed={seed}",
        *overrides,
    ]
    is_looped = folder / "loop-done"
    if not is_looped.exists():
        resume = ["--resume"] if (folder / "run" / "runs").exists() else []
        phases = ["--rl-phase", "both", "--eval-interval", str(eval_interval)]
        phases += ["--max-iterations", str(iterations)]
        run([*command, *phases, *resume, *settings], log)
        is_looped.touch()


def read_accuracies(paths: RunPaths, iterations: int) -> list[float]:
    """Test accuracies in the order of the evaluations. Raises SystemExit if the first or last is missing."""
    by_iteration = {
        int(record["iteration"]): float(record[ACCURACY])
        for record in metrics.read(paths.metrics)
        if ACCURACY in record
    }
    missing = {1, iterations + 1} - by_iteration.keys()
    if missing:
        raise SystemExit(f"{paths.metrics} has no {ACCURACY} for iteration {min(missing)}")
    return [by_iteration[i] for i in sorted(by_iteration)]


def measure(folder: Path, seed: int, iterations: int, kind: str, overrides: Sequence[str]) -> Outcome:
    """Run one seed, or read what it came to before."""
    result = folder / "outcome.json"
    if result.exists():
        return Outcome(**json.loads(result.read_text(encoding="utf-8")))
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    log, paths = folder / "log.txt", RunPaths(folder / "run")
    sampled, untaught = [], []
    if kind.startswith("web-"):
        run_quickstart(folder, seed, iterations, kind.removeprefix("web-"), overrides, log)
    else:
        prepare(folder, seed, log)
        run_loop(folder, seed, iterations, EXPERIMENTS[kind], overrides, log)
    seconds = time.monotonic() - started
    check_run(folder, iterations)
    if kind.startswith("web-"):
        models = {"sampled-base": folder / "base-model", "sampled-trained": paths.model_link.resolve()}
        sampled = [
            sample(folder, name, model, seed, EXPERIMENTS[kind], overrides, log)
            for name, model in models.items()
        ]
        untaught = [count_untaught(paths, iteration) for iteration in (1, iterations + 1)]
    outcome = Outcome(seed, read_accuracies(paths, iterations), seconds, sampled, untaught)
    temporary = result.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(outcome)) + "\n", encoding="utf-8")
    temporary.rename(result)
    return outcome


def table_row(outcome: Outcome) -> str:
    curve = " ".join(f"{100 * accuracy:6.1f}" for accuracy in outcome.accuracies)
    verdict = "yes" if outcome.is_enough else "no"
    row = f"{outcome.seed:4d}  {curve}  {outcome.gain:+6.1f}  {verdict:>3}  {outcome.seconds:6.0f}"
    if outcome.sampled:
        sampled = " to ".join(f"{100 * accuracy:.1f}" for accuracy in outcome.sampled)
        untaught = " to ".join(f"{solved}/{pages}" for solved, pages in outcome.untaught)
        row += f"  sampled {sampled}, untaught {untaught}"
    return row


def is_met(outcomes: Sequence[Outcome]) -> bool:
    return sum(outcome.is_enough for outcome in outcomes) >= WANTED_SHARE * len(outcomes)


def main(argv: list[str] | None = None) -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--agent", choices=("text", "web"), default="text")
    parser.add_argument("--trainer", choices=("llamafactory", "grpo"), default="llamafactory")
    parser.add_argument(
        "--iterations",
        type=int,
        help="trips round the loop, at least 1 (default 4, with grpo 6, with web 2, with both 6)",
    )
    parser.add_argument("--folder", type=Path, default=PROJECT_ROOT / "outputs" / "learning")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="configuration, as for scripts/run.sh"
    )
    arguments = parser.parse_intermixed_args(argv)
    kind = f"web-{arguments.trainer}" if arguments.agent == "web" else arguments.trainer
    arguments.iterations = arguments.iterations or ITERATIONS[kind]
    every = EVAL_INTERVALS.get(kind, 1)
    updates = [*range(every, arguments.iterations, every), arguments.iterations]
    columns = " ".join(f"{name:>6}" for name in ("base", *(f"u{i}" for i in updates)))
    print(f"seed  {columns}    gain   ok       s   (test accuracy in %, before and after updates)")
    outcomes = []
    for seed in arguments.seeds:
        folder = arguments.folder.resolve() / f"{kind}-{arguments.iterations}-iterations"
        folder /= f"seed-{seed}"
        outcomes.append(measure(folder, seed, arguments.iterations, kind, arguments.overrides))
        print(table_row(outcomes[-1]), flush=True)
    enough = sum(outcome.is_enough for outcome in outcomes)
    met = "met" if is_met(outcomes) else "NOT met"
    print(
        f"{enough} of {len(outcomes)} seeds gained {WANTED_GAIN:.0f} points; wanted {WANTED_SHARE:.0%}: {met}"
    )
    return 0 if is_met(outcomes) else 1


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
