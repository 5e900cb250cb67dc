"""A plan, task files and a simulated engine for tests and benchmarks of the collector."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_agent.config.overrides.words import parse_override
from rl_agent.config.plan import Command, Config, Hardware, Plan
from rl_agent.plan.compose import compose_config
from tests.support.tiny_chat import save_tiny_model_folder

START_TIMEOUT_S = 20.0
ENGINE = Path(__file__).with_name("simulated_engine.py")


def plan_of(config: Config, *, num_gpus: int = 0, **flags: Any) -> Plan:
    """The first attempt of a run on one node with two cores; `flags` are those of `command_of`."""
    hardware = Hardware(num_gpus=num_gpus, cores=2, memory_gib=8)
    command = command_of(**flags)
    return Plan(run_id="run", attempt=1, first_iteration=1, command=command, hardware=hardware, config=config)


def command_of(rl_phase: str = "both", **flags: Any) -> Command:
    """A command line of one node that gives these flags alone."""
    none = dict.fromkeys(("eval_interval", "rollout_split", "max_iterations"))
    off = {"debug_mode": False, "resume": False, "overrides": ()}
    alone = {"num_nodes": 1, "rank": 0, "rank_weights": (1,)}
    return Command.model_validate({"rl_phase": rl_phase, **none, **off, **alone, **flags})


def make_plan(folder: Path, *overrides: str, engine_url: str, model: Path | None = None) -> Plan:
    """A run with `model`, else a tokenizer without weights; `overrides` are words of the command line."""
    data_path, log_path = folder / "data", folder / "log"
    data_path.mkdir(exist_ok=True)
    log_path.mkdir(exist_ok=True)
    model = model or save_tiny_model_folder(folder / "model")
    words = (f"model_config.base_model={model}", f"engine.url={engine_url}", *overrides)
    parsed = [parse_override(word, "test") for word in words]
    composed = compose_config(parsed, data_path=data_path, log_path=log_path, num_gpus=0)
    flags: dict[str, Any] = {"rollout_split": "train-only", "debug_mode": True, "max_iterations": 1}
    return plan_of(composed.config, rl_phase="rollout", **flags, overrides=overrides)


def write_tasks(plan: Plan, count: int, *, env: str, **fields: object) -> None:
    """`count` train tasks for one environment."""
    tasks = (
        {"task_id": f"task-{i}", "prompt": f"{i}+1=", "answer": str(i + 1), "env": env, **fields}
        for i in range(count)
    )
    path = plan.tasks_file("train")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))


@contextmanager
def simulated_engine(folder: Path, **behaviour: object) -> Iterator[str]:
    """The URL of a simulated engine in a process of its own, which ends with the block."""
    with engine_process(folder, **behaviour) as (url, _):
        yield url


@contextmanager
def engine_process(folder: Path, **behaviour: object) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    command = [sys.executable, str(ENGINE), "--root", str(folder / "model"), *_flags(behaviour)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}", process
    finally:
        process.terminate()
        process.communicate(timeout=START_TIMEOUT_S)


def _flags(behaviour: Mapping[str, object]) -> list[str]:
    return [part for key, value in behaviour.items() for part in ("--" + key.replace("_", "-"), str(value))]
