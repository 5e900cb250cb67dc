"""Two log paths that have everything the page shows: numbers, time, trajectories, a pool, and a verdict."""

import json
from dataclasses import replace
from pathlib import Path

from rl_agent.cluster.protocol.records import MASTER_FILE
from rl_agent.monitor import metrics
from rl_agent.paths import RunPaths
from rl_agent.types import Compaction, EpisodeKey, SeenContext, TokenSpan, Trajectory
from tests.integration.trainer.settings import LOSS
from tests.support.cluster.members import master
from tests.unit.page.run_files import lines
from tests.unit.page.stores import attempts, keep_png, record
from tests.unit.page.test_pool_view import moved, sample, write_history
from tests.unit.page.test_trajectory_views import EVIL
from tests.unit.rollout.trajectories_made import make_step, make_trajectory

REWARDS = [0.0, 0.25, 1.0]
SUCCESS = {"log": (0.5, 0.625, 0.875), "other": (0.25, 0.75, 0.8125)}
SPANS = [("rollout", 1, 100.0, 130.0), ("update", 1, 130.0, 145.0), ("rollout", 2, 145.0, 160.0)]
MACHINES, JUDGE = (1.25, 0.5), 0.0625
"""Dollars: of two update steps, and of the judge."""
CRITERIA = [
    {"criterion": "The price is named.", "weight": 2, "verdict": "yes", "reason": "It says 12 Euro."},
    {"criterion": "The shop is named.", "weight": 1, "verdict": "no", "reason": "No shop."},
]
CALL = {"name": "search", "arguments": {"words": "red shoes", "most": 3, "where": ["a", "b"]}}
ENGINES = {"a" * 32: "spot-1", "b" * 32: "home-1"}
LOGPROBS = (-0.01, -0.5, -1.0, -3.0, -9.0)
STATES = [
    ("spot-1", "registered", 100.0, ""),
    ("spot-1", "ready", 110.0, ""),
    ("home-1", "ready", 120.0, ""),
    ("spot-1", "draining", 140.0, "taken back"),
    ("spot-1", "gone", 150.0, "drained: taken back"),
]
WANTED = [(105.0, 1, "no engine's speed is known yet"), (125.0, 2, "the trainer waited 41 s of 60")]
CAME = {"trainer": 1_234_567, "engines": 89, "manager": 7, "same_host": 0}
MOVES = [moved(141.0, tokens=77), moved(142.0, moved="task-7:0:0:0", **{"from": ""})]


def judged_episode() -> Trajectory:
    """Turns that see a line, a summary, or nothing of earlier ones; tokens of two engines; a tool call."""
    first = make_step("8", observation="the first page")
    summary = Compaction(1, (1,), (), replace(first.generation, text="what came before, in short"))
    spans = tuple(TokenSpan(n, v, e) for (n, v), e in zip(((2, 3), (3, 4)), ENGINES, strict=True))
    generation = replace(
        first.generation, token_ids=(5, 6, 7, 8, 9), logprobs=LOGPROBS, spans=spans, weight_version_max=4
    )
    steps = (
        first,
        replace(first, seen=SeenContext("window", whole_from=1, as_lines=1)),
        replace(first, seen=SeenContext("summary", whole_from=1, compactions=(summary,))),
        replace(
            first,
            seen=SeenContext("window", whole_from=2, as_lines=1),
            generation=generation,
            action=json.dumps(CALL),
        ),
    )
    detail = {"verdict": "partly", "reason": "One of two.", "judge_model": "judge-1", "criteria": CRITERIA}
    return replace(make_trajectory(5, steps=steps, reward=0.6667), reward_detail=detail)


def window_episodes(paths: RunPaths) -> list[Trajectory]:
    """Siblings that see the last two turns, with a screenshot and a click in each."""
    shots = [keep_png(paths, 400, 300, colour) for colour in ("white", "lightblue")]
    steps = tuple(
        replace(
            make_step(f"click {500 + 100 * n} 250", observation=f"page {n}", images=(shots[n % 2],)),
            seen=SeenContext("window", (Path(shots[n % 2]).stem,), whole_from=max(0, n - 2)),
        )
        for n in range(6)
    )
    return attempts(0, REWARDS, steps=steps)


def hostile_episode() -> Trajectory:
    episode = make_trajectory(9, steps=(make_step(EVIL, observation=EVIL),), system_prompt=EVIL)
    return replace(episode, key=EpisodeKey(EVIL, 0, 0), task=replace(episode.task, task_id=EVIL, prompt=EVIL))


def write_plan(paths: RunPaths) -> None:
    """Write the plan of a run of the GRPO trainer."""
    plan = {"config": {"trainer": {"kind": "grpo", "loss": LOSS}}}
    (paths.log_path / "runs" / "latest").mkdir(parents=True, exist_ok=True)
    (paths.log_path / "runs" / "latest" / "plan.json").write_text(json.dumps(plan))


def write_curves(paths: RunPaths) -> None:
    for iteration, success in enumerate(SUCCESS[paths.log_path.name], start=1):
        figures = {"test/success_rate": success, "test/reward_mean": success}
        metrics.append(paths.metrics, {"iteration": iteration, "split": "test", **figures})


def write_costs(paths: RunPaths) -> None:
    for step, dollars in enumerate(MACHINES, start=1):
        metrics.append(paths.metrics, {"iteration": step, "update_step": step, "trainer/cost": dollars})
    metrics.append(paths.metrics, {"iteration": 1, "split": "train", "train/judge_cost_usd": JUDGE})


def write_pool(log_path: Path) -> None:
    def change(name: str, state: str, at: float, reason: str) -> dict:
        number = next(each for each, of in ENGINES.items() if of == name)[:8]
        return {"at": at, "engine": name, "id": number, "state": state, "reason": reason, "weight_version": 3}

    wanted = (
        {"at": at, "wanted": {"spot": count}, "present": {"spot": 1}, "reason": reason, "ceiling": ""}
        for at, count, reason in WANTED
    )
    both = {"spot-1": ["ready", 3, 4], "home-1": ["ready", 3, 1]}
    samples = (sample(130.0, engines=both), sample(160.0, moves=9, weight_bytes=CAME))
    write_history(log_path, *(change(*each) for each in STATES), *wanted, *MOVES, *samples)


def write_end(folder: Path, reason: str) -> None:
    """A run that has begun below `folder`/log, and ended with an error."""
    with master(folder, 1) as node:
        node.give_order(1, "rollout")
    file = folder / "log" / MASTER_FILE
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "ended": {**record["ended"], "status": 1, "reason": reason}}))


def write_runs(folder: Path) -> list[Path]:
    """Write both log paths; the second has curves alone."""
    paths = RunPaths(folder / "log")
    write_end(folder, "the disk is full")
    write_plan(paths)
    record(paths, 1, *window_episodes(paths), judged_episode(), hostile_episode())
    for iteration, reward in ((1, 0.0), (2, 1.0)):
        record(paths, iteration, *attempts(7, [reward], split="test"), split="test")
    write_curves(paths)
    write_costs(paths)
    spans = (dict(zip(("name", "iteration", "start", "end"), span, strict=True)) for span in SPANS)
    paths.timeline.write_text(lines(*spans))
    write_pool(paths.log_path)
    other = RunPaths(folder / "other")
    other.log_path.mkdir()
    write_curves(other)
    return [paths.log_path, other.log_path]
