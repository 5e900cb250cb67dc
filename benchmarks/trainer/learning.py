"""Whether the loop teaches: the quickstart's model and task, several seeds, everything real.

    python benchmarks/trainer/learning.py [--agent text|web] [--trainer llamafactory|grpo] [--seeds 0 1 2 3 4]
        [--iterations N] [--folder DIR] [key=value ...]

Each seed has tasks, a base model and a run of its own. The loop evaluates the served model in every
iteration, before it trains; one evaluation more after the last update gives the end. Accuracy is the share
of the held-out test tasks that succeed: sums with greedy decoding, web pages as sampled. A seed that is done
is not run again, and one that was interrupted goes on: call it again with the same folder.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.system.flag_parser import FlagParser

ACCURACY = "test/success_rate"
EXPERIMENTS = {"llamafactory": "quickstart", "grpo": "quickstart_grpo"}
WANTED_GAIN = 15.0
"""Points between the first and the last evaluation."""
WANTED_SHARE = 0.8
"""Of the seeds: four of five."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed came to."""

    seed: int
    accuracies: list[float]
    """Of the base model, then after each update."""
    seconds: float
    """Of the call that finished it, tasks and base model included."""

    @property
    def gain(self) -> float:
        return 100 * (self.accuracies[-1] - self.accuracies[0])

    @property
    def is_enough(self) -> bool:
        return self.gain >= WANTED_GAIN


def run(command: Sequence[str | Path], log: Path) -> None:
    """Run a command, its output appended to `log`. Raises SystemExit if it fails."""
    with log.open("a", encoding="utf-8") as output:
        status = subprocess.run(list(map(str, command)), stdout=output, stderr=output, check=False).returncode
    if status != 0:
        raise SystemExit(f"exit {status} from {' '.join(map(str, command))}; see {log}")


def prepare(folder: Path, seed: int, log: Path) -> None:
    """Make the seed's tasks and base model; returns at once for those that are there."""
    data = PROJECT_ROOT / "data"
    scripts = {"tasks": ["make_tasks.py", "quickstart"], "model": ["teach_base_model.py"]}
    for name, (script, *preset) in scripts.items():
        run([sys.executable, data / script, *preset, "--out", folder / name, "--seed", str(seed)], log)


def run_quickstart(folder: Path, seed: int, iterations: int, overrides: Sequence[str], log: Path) -> None:
    """Run the whole web quickstart, which goes on by itself where it was interrupted."""
    command = ["bash", PROJECT_ROOT / "scripts" / "quickstart.sh", "--agent", "web", "--out", folder]
    run([*command, "--seed", str(seed), "--iterations", str(iterations), *overrides], log)


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


def read_accuracies(paths: RunPaths, iterations: int, eval_interval: int = 1) -> list[float]:
    """Test accuracy at the start of iterations and at the end. Raises SystemExit if one is missing."""
    by_iteration = {
        int(record["iteration"]): float(record[ACCURACY])
        for record in metrics.read(paths.metrics)
        if ACCURACY in record
    }
    evaluated = range(1, iterations + 2, eval_interval)
    missing = [i for i in evaluated if i not in by_iteration]
    if missing:
        raise SystemExit(f"{paths.metrics} has no {ACCURACY} for iteration {missing[0]}")
    return [by_iteration[i] for i in evaluated]


def measure(folder: Path, seed: int, iterations: int, kind: str, overrides: Sequence[str]) -> Outcome:
    """Run one seed, or read what it came to before."""
    result = folder / "outcome.json"
    if result.exists():
        return Outcome(**json.loads(result.read_text(encoding="utf-8")))
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    log = folder / "log.txt"
    if kind == "web":
        run_quickstart(folder, seed, iterations, overrides, log)
    else:
        prepare(folder, seed, log)
        run_loop(folder, seed, iterations, EXPERIMENTS[kind], overrides, log)
    accuracies = read_accuracies(RunPaths(folder / "run"), iterations)
    outcome = Outcome(seed, accuracies, time.monotonic() - started)
    temporary = result.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(outcome)) + "\n", encoding="utf-8")
    temporary.rename(result)
    return outcome


def table_row(outcome: Outcome) -> str:
    curve = " ".join(f"{100 * accuracy:6.1f}" for accuracy in outcome.accuracies)
    verdict = "yes" if outcome.is_enough else "no"
    return f"{outcome.seed:4d}  {curve}  {outcome.gain:+6.1f}  {verdict:>3}  {outcome.seconds:6.0f}"


def is_met(outcomes: Sequence[Outcome]) -> bool:
    return sum(outcome.is_enough for outcome in outcomes) >= WANTED_SHARE * len(outcomes)


def main(argv: list[str] | None = None) -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--agent", choices=("text", "web"), default="text")
    parser.add_argument("--trainer", choices=EXPERIMENTS, default="llamafactory")
    parser.add_argument(
        "--iterations", type=int, help="trips round the loop, at least 1 (default 4, with grpo 6, with web 2)"
    )
    parser.add_argument("--folder", type=Path, default=PROJECT_ROOT / "outputs" / "learning")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="configuration, as for scripts/run.sh"
    )
    arguments = parser.parse_intermixed_args(argv)
    if arguments.agent == "web" and arguments.trainer == "grpo":
        parser.error("--trainer grpo trains on text only; --agent web takes llamafactory")
    kind = "web" if arguments.agent == "web" else arguments.trainer
    arguments.iterations = arguments.iterations or {"llamafactory": 4, "grpo": 6, "web": 2}[kind]
    columns = " ".join(
        f"{name:>6}" for name in ("base", *(f"u{i}" for i in range(1, arguments.iterations + 1)))
    )
    print(f"seed  {columns}    gain   ok       s   (test accuracy in %, before and after each update)")
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
