"""A real model by ours and by TRL: success of SmolLM2 on tasks of reasoning-gym, per sample and per minute.

    python benchmarks/trainer/real_model.py --model DIR [--trl DIR] [--gpus 0 | --gpus 0,1 | --device cpu]
        [--tasks DIR] [--only sums gcd products] [--seeds 0 1 2 3 4] [--iterations N] [--folder DIR]
        [--sides ours ours-stale ours-killed TRL] [KEY=VALUE …]

On one GPU, and on a CPU, the other side is TRL's GRPOTrainer, with vLLM in its own process (`colocate`; on a
CPU transformers generates); ours has engine and trainer on that GPU at the same time (`placement=shared`).
On two GPUs it is AsyncGRPOTrainer on the first beside a vLLM server on the second, and ours trains on the
first beside an engine that `join_pool.sh` lends on the second. `ours-stale` samples one version behind the
trainer, as AsyncGRPO does; `ours` samples with the newest weights alone.
`ours-killed` is `ours` with two engines that are lent on the last GPU, of which one is killed in mid-rollout.
The last runs where --sides names it.

Both sides begin from one model folder (`data/smollm2.py` makes it) and have the same tasks, samples, steps
and learning rate; advantages normalised in their group, clipping at 0.2, the mean over a step's tokens, no KL
term; temperature 1, 24 tokens, no reward for a response that was cut; greedy evaluation of the same held-out
tasks before the first iteration, after the last and after some. The reward of samples is the mean over all
iterations since the evaluation before. What corrects for the engine's rounding is the default of each side.
Seconds begin when a side is started; left out are those of evaluations, unless rollouts go on beside them
(`ours-stale`), and of our checkpoint and model at the end, for TRL writes none. Only 100 tasks are held out,
for each takes an easy one away from training: there are not many sums of two digits.

--tasks DIR holds a folder of train.jsonl and test.jsonl for each task; without it they are made, which takes
reasoning-gym. A side that is done is not run again: name another folder for other settings. `--device cpu
--seeds 0 --only sums --iterations 2 --groups 2` shows within minutes that all of it works. For --trl see
trl_comparison.py.
"""

import json
import math
import os
import signal
import statistics
import sys
import threading
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.trainer.learning import read_accuracies, run, run_loop
from benchmarks.trainer.real_model_trl import ENGINE_TOKENS, GROUP_SIZE, LONGEST
from benchmarks.trainer.stream_loop import kill, start, stop
from benchmarks.trainer.trl_comparison import Point, measure, rewards_of_ours, seconds_of_ours
from benchmarks.trainer.trl_stream import serve, wait_for
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT, RunPaths
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import read_iteration
from rl_agent.system.flag_parser import FlagParser

ENDING = "Answer with the number alone."
_ARITHMETIC = (
    "basic_arithmetic:easy:min_terms=2,max_terms=2,min_digits=1,max_digits=2,allow_parentheses=false,"
    "allow_negation=false,format_style=natural"
)
SOURCES = {
    "sums": f'{_ARITHMETIC},operators=["+"]',
    "products": f'{_ARITHMETIC},operators=["*"]',
    "gcd": "gcd:easy:max_value=60",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that all tasks, seeds and sides have in common."""

    model: Path
    trl: Path | None
    gpus: tuple[str, ...]
    iterations: int
    groups: int
    steps: int
    learning_rate: float
    eval_interval: int
    overrides: tuple[str, ...] = ()
    """Words for run.sh that our sides get besides."""

    @property
    def evaluated(self) -> list[int]:
        """Iterations after which success is measured; 0: before the first."""
        return list(range(0, self.iterations + 1, self.eval_interval))

    @property
    def samples(self) -> int:
        """Episodes of an iteration."""
        return self.groups * GROUP_SIZE


KILL_FROM, KILL_REQUESTS = 2, 16
"""An engine is killed from this weight version on, while it runs so many requests."""


def overrides(settings: Settings, staleness: int) -> list[str]:
    """Return what our side adds to the experiment quickstart_smollm2."""
    words = [
        f"trainer.batch.max_staleness={staleness}",
        f"env_config.train_tasks_rollout_size={settings.groups}",
        f"env_config.server_size={settings.samples}",
        f"rollout.group_size={GROUP_SIZE}",
        f"rollout.max_vllm_sessions={settings.samples}",
        f"policy_config.max_new_tokens={LONGEST}",
        f"trainer.mini_batches={settings.steps}",
        f"trainer.optimizer.learning_rate={settings.learning_rate}",
        "trainer.batch.order=shuffled",
        f"trainer.checkpoint.every={settings.iterations}",
        f"trainer.checkpoint.every_steps={settings.iterations * settings.steps}",
        "page.port=off",
        "wandb.mode=disabled",
    ]
    if settings.gpus:
        words += ["engine=gpu", f"engine.max_model_len={ENGINE_TOKENS}", "engine.gpu_memory_utilization=0.3"]
        words += ["trainer=grpo"]
        words += ["trainer.parallel.activation_checkpointing=0", "trainer.parallel.offload_optimizer=false"]
        words += ["trainer.batch.token_budget=32768", "trainer.batch.logits_chunk_tokens=2048"]
    return [*words, *settings.overrides]


def run_ours(
    seed_folder: Path, seed: int, settings: Settings, *, staleness: int = 0, is_killed: bool = False
) -> list[Point]:
    folder = seed_folder / ("ours-killed" if is_killed else f"ours-{staleness}")
    folder.mkdir(exist_ok=True)
    for name in ("tasks", "model"):
        link(folder / name, seed_folder / name)
    started = time.time()
    words, log = overrides(settings, staleness), folder / "ours.log"
    if settings.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = settings.gpus[0]
    with ExitStack() as stack:
        elsewhere = ["trainer.placement=shared"] if settings.gpus else []
        if is_killed or len(settings.gpus) > 1:
            elsewhere = stack.enter_context(rented_engines(folder, settings, 2 if is_killed else 1))
        run_loop(
            folder,
            seed,
            settings.iterations,
            "quickstart_smollm2",
            [*words, *elsewhere],
            log,
            eval_interval=settings.eval_interval,
        )
    paths = RunPaths(folder / "run")
    check_episodes(paths, settings)
    accuracies = read_accuracies(paths, settings.iterations)
    seconds = seconds_of_ours(paths.timeline, started, settings.iterations, overlaps=staleness > 0)
    rewards = rewards_of_ours(paths)
    seconds[-1] -= seconds_of_last_model(paths)
    return [
        Point(index * settings.samples, seconds[index], accuracy, reward_before(index, rewards, settings))
        for index, accuracy in zip(settings.evaluated, accuracies, strict=True)
    ]


def reward_before(index: int, rewards: Mapping[int, float], settings: Settings) -> float | None:
    """Return the mean reward of the samples since the evaluation before that of this iteration."""
    since = [
        rewards[iteration]
        for iteration in range(index - settings.eval_interval + 1, index + 1)
        if iteration > 0
    ]
    return statistics.mean(since) if since else None


def seconds_of_last_model(paths: RunPaths) -> float:
    """Return how long the last checkpoint and model took: earlier ones are written while training goes on."""
    written = [
        record["update/model_s"] for record in metrics.read(paths.metrics) if "update/model_s" in record
    ]
    return float(written[-1])


def check_episodes(paths: RunPaths, settings: Settings) -> None:
    """Raise AssertionError unless every iteration has all its episodes, rewarded, and made a version."""
    for iteration in range(1, settings.iterations + 1):
        episodes = list(read_iteration(paths, "train", iteration, TRAJECTORY))
        rewarded = sum(episode.reward is not None for episode in episodes)
        assert rewarded == settings.samples, f"iteration {iteration}: {rewarded} episodes have a reward"
    served = paths.model_link.resolve().name
    assert served == f"version-{settings.iterations:06d}", f"{served} is served at the end"


@contextmanager
def rented_engines(folder: Path, settings: Settings, count: int) -> Iterator[list[str]]:
    """Lend engines on the last GPU to the run's pool, the first of several to be killed at its work.

    Yields what tells the run. Raises AssertionError at the end unless that engine was killed.
    """
    port = free_port()
    flags = (
        f"--dtype bfloat16 --max-model-len {ENGINE_TOKENS} --max-num-seqs 512 --gpu-memory-utilization 0.3"
    )
    words = ["bash", "scripts/join_pool.sh", "--manager", f"http://127.0.0.1:{port}", "--capacity", "512"]
    words += ["--gpus", settings.gpus[-1], f"--engine-args={flags}"]
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(settings.gpus)}
    names = [f"rented-{number}" for number in range(count)]
    logs = [folder / f"{name}.log" for name in names]
    workers = [
        start([*words, "--name", name, "--log", str(log.with_suffix(".vllm.log"))], log, visible)
        for name, log in zip(names, logs, strict=True)
    ]

    def kill_at_work() -> None:
        while workers[0].poll() is None:
            time.sleep(0.02)
            if is_at_work(port, names[0]):
                kill(workers[0], logs[0])

    killer = threading.Thread(target=kill_at_work, daemon=True)
    if count > 1:
        killer.start()
    try:
        yield [f"pool.port={port}", "pool.local_engine=false"]
        assert count == 1 or workers[0].poll() is not None, f"{names[0]} was not killed"
    finally:
        for worker in workers:
            stop(worker)


def is_at_work(port: int, name: str) -> bool:
    """Return whether this engine runs requests with weights that were trained."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
            engines = {engine["name"]: engine for engine in json.load(answer)["engines"]}
    except OSError:
        return False
    engine = engines.get(name, {"running": 0})
    return bool(engine["running"] >= KILL_REQUESTS and engine["weight_version"] >= KILL_FROM)


def run_trl(folder: Path, seed: int, settings: Settings) -> list[Point]:
    out = folder / "trl.jsonl"
    script = PROJECT_ROOT / "benchmarks" / "trainer" / "real_model_trl.py"
    command: list[str | Path] = [sys.executable, script]
    command += ["--tasks", folder / "tasks", "--model", settings.model, "--out", out, "--seed", str(seed)]
    command += ["--iterations", str(settings.iterations), "--groups", str(settings.groups)]
    command += ["--eval-interval", str(settings.eval_interval)]
    command += ["--steps", str(settings.steps), "--learning-rate", str(settings.learning_rate)]
    command += ["--device", "cuda" if settings.gpus else "cpu"]
    places = [str(settings.trl.resolve())] if settings.trl else []
    variables = {"PYTHONPATH": os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])}
    if settings.gpus:
        variables |= {"CUDA_VISIBLE_DEVICES": settings.gpus[0], "MASTER_PORT": str(free_port())}
    with vllm_server(folder, settings) as asynchronous:
        assignments = [f"{name}={value}" for name, value in variables.items()]
        run(["env", *assignments, *command, *asynchronous], folder / "trl.log")
    points = [Point(**json.loads(line)) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [p.samples for p in points] == [settings.samples * i for i in settings.evaluated]
    assert all(point.reward_before is not None for point in points[1:]), f"{out}: samples without a reward"
    return points


@contextmanager
def vllm_server(folder: Path, settings: Settings) -> Iterator[list[str]]:
    """Serve the model on the second GPU for AsyncGRPO; yields the words that choose it, none on one GPU."""
    if len(settings.gpus) < 2:
        yield []
        return
    port = free_port()
    engine = Namespace(model=settings.model, longest=ENGINE_TOKENS, gpus=",".join(settings.gpus), out=folder)
    server = serve(engine, port)
    try:
        wait_for(server, f"http://127.0.0.1:{port}")
        yield ["--trainer", "async", "--url", f"http://127.0.0.1:{port}"]
    finally:
        stop(server)


SIDES: dict[str, Callable[[Path, int, Settings], list[Point]]] = {
    "TRL": run_trl,
    "ours": run_ours,
    "ours-stale": partial(run_ours, staleness=1),
    "ours-killed": partial(run_ours, is_killed=True),
}
COLOURS = {"ours": "C0", "TRL": "C1", "ours-stale": "C2", "ours-killed": "C3"}
Runs = Mapping[tuple[str, str], Sequence[Sequence[Point]]]
"""The runs of all seeds, by task and side."""


def table(runs: Runs) -> str:
    """Render a line for each task and side: success, and points gained per 1,000 samples and per minute."""
    lines = [
        "task         side          seeds  before  after (se)    reward (se)    per 1,000 samples  start s"
        "  minutes  per minute"
    ]
    for (task, side), seeds in runs.items():
        gains = [100 * (points[-1].accuracy - points[0].accuracy) for points in seeds]
        minutes = [(points[-1].seconds - points[0].seconds) / 60 for points in seeds]
        before = statistics.mean(100 * points[0].accuracy for points in seeds)
        error = standard_error(gains)
        gain, spent = statistics.mean(gains), statistics.mean(minutes)
        started = statistics.median(points[0].seconds for points in seeds)
        rewards = [100 * (points[-1].reward_before or 0.0) for points in seeds]
        lines.append(
            f"{task:11}  {side:12}  {len(seeds):5d}  {before:6.1f}  {before + gain:5.1f} ({error:.1f})"
            f"  {statistics.mean(rewards):6.1f} ({standard_error(rewards):.1f})"
            f"  {1000 * gain / seeds[0][-1].samples:+19.1f}  {started:7.0f}"
            f"  {spent:7.2f}  {gain / spent:+10.1f}"
        )
    return "\n".join(lines)


def verdicts(runs: Runs) -> str:
    """Say for each task how ours compares: points at equal samples, with its standard error, and speed."""
    lines = []
    for (task, side), ours in runs.items():
        trl = runs.get((task, "TRL"), ())
        if side == "TRL" or not trl:
            continue
        apart = [100 * (a[-1].accuracy - b[-1].accuracy) for a, b in zip(ours, trl, strict=True)]
        spent = [statistics.mean(p[-1].seconds - p[0].seconds for p in seeds) for seeds in (ours, trl)]
        lines.append(
            f"{task}: after equal samples {side} - TRL {statistics.mean(apart):+.1f} points (standard error"
            f" {standard_error(apart):.1f}); {spent[1] / spent[0]:.2f}x TRL's samples per minute"
        )
    return "\n".join(lines)


def standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan


def draw(runs: Runs, path: Path) -> None:
    """Draw success over samples and over minutes, a row for each task; thin lines are seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "real-model"}
    from matplotlib import pyplot as plt

    tasks = list(dict.fromkeys(task for task, _ in runs))
    figure, axes = plt.subplots(len(tasks), 2, figsize=(9, 3.2 * len(tasks)), squeeze=False, sharey="row")
    for (task, side), seeds in runs.items():
        colour = COLOURS[side]
        row = axes[tasks.index(task)]
        for points in seeds:
            success = [100 * point.accuracy for point in points]
            row[0].plot([p.samples for p in points], success, colour, alpha=0.35, linewidth=1)
            row[1].plot(minutes_of(points), success, colour, alpha=0.35, linewidth=1)
        means = [100 * statistics.mean(p.accuracy for p in of_point) for of_point in zip(*seeds, strict=True)]
        minutes = [statistics.mean(of_point) for of_point in zip(*map(minutes_of, seeds), strict=True)]
        row[0].plot([p.samples for p in seeds[0]], means, colour, linewidth=2.5, label=side)
        row[1].plot(minutes, means, colour, linewidth=2.5, label=side)
        row[0].set(title=task, xlabel="samples", ylabel="held-out success, %")
        row[1].set(title=task, xlabel="minutes after the start")
        row[1].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def minutes_of(points: Sequence[Point]) -> list[float]:
    """Return the minutes from the first evaluation to each, as `measure` counts seconds."""
    return [(point.seconds - points[0].seconds) / 60 for point in points]


def make_tasks(out: Path, name: str) -> None:
    command: list[str | Path] = [
        sys.executable,
        PROJECT_ROOT / "data" / "make_tasks.py",
        "examples",
        "--out",
        out,
    ]
    command += ["--train-size", "600", "--test-size", "100", "--env", "math", "--ending", ENDING]
    run([*command, "--source", SOURCES[name]], out.with_suffix(".log"))


def link(path: Path, target: Path) -> None:
    if not path.exists():
        path.symlink_to(target.resolve())


def main(argv: list[str] | None = None) -> int:
    parser = FlagParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model folder of data/smollm2.py")
    parser.add_argument("--tasks", type=Path, help="folder of task folders (default: they are made)")
    parser.add_argument(
        "--trl", type=Path, metavar="DIR", help="a folder with another TRL than the environment's"
    )
    parser.add_argument("--gpus", default="0", help="one or two, with a comma (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: without --gpus")
    parser.add_argument("--only", choices=SOURCES, nargs="+", default=list(SOURCES), help="these tasks")
    parser.add_argument("--sides", choices=SIDES, nargs="+", default=["TRL", "ours", "ours-stale"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--iterations", type=int, default=20, help="before the first and after the last success is measured"
    )
    parser.add_argument(
        "--eval-interval", type=int, default=10, help="and between so many, which divide --iterations"
    )
    parser.add_argument(
        "--groups", type=int, default=64, help="tasks of an iteration, 8 attempts each (default: 64)"
    )
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps of an iteration (default: 2)")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--folder", type=Path, default=PROJECT_ROOT / "outputs" / "real-model")
    parser.add_argument("overrides", nargs="*", help="key=value for run.sh, of our sides")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on the way out
    if options.iterations % options.eval_interval:
        parser.error(
            f"--eval-interval={options.eval_interval} does not divide {options.iterations} iterations"
        )
    gpus = tuple(options.gpus.split(",")) if options.device == "cuda" else ()
    if "ours-killed" in options.sides and not gpus:
        parser.error("--sides ours-killed needs a GPU")
    settings = Settings(
        options.model.resolve(),
        options.trl,
        gpus,
        options.iterations,
        options.groups,
        options.steps,
        options.learning_rate,
        options.eval_interval,
        tuple(options.overrides),
    )
    root: Path = options.folder.resolve()
    runs: dict[tuple[str, str], list[list[Point]]] = {}
    for task in options.only:
        tasks = (options.tasks or root / "tasks") / task
        if not (tasks / "test.jsonl").exists():
            tasks.mkdir(parents=True, exist_ok=True)
            make_tasks(tasks, task)
        for number, seed in enumerate(options.seeds):
            folder = root / task / f"seed-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            link(folder / "tasks", tasks)
            link(folder / "model", settings.model)
            for side in sorted(options.sides, reverse=number % 2 == 1):
                points = measure(folder / f"{side}.json", partial(SIDES[side], folder, seed, settings))
                runs.setdefault((task, side), []).append(points)
                success = " ".join(f"{100 * point.accuracy:5.1f}" for point in points)
                print(f"{task:8} seed {seed} {side:12} {points[-1].seconds:5.0f} s  {success}", flush=True)
    print(f"{table(runs)}\n{verdicts(runs)}")
    draw(runs, root / "real-model.svg")
    print(f"curves: {root / 'real-model.svg'}")
    return 0


if __name__ == "__main__":
    from rl_agent.system.terminal import run_script

    run_script(main)
