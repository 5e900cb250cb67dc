"""Makes the plan of a start: arguments and configuration, checked against this machine.

`prepare` reads only, so `--dry-run` may use it; `start` is the one that writes.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_agent.cluster import run_lock
from rl_agent.cluster.flags import finished_phases
from rl_agent.cluster.schedule import Work, add_shards, first_iteration, next_work, numbers_on_disk
from rl_agent.config import Command, Config, Hardware, Plan
from rl_agent.engine.gpus import count_gpus
from rl_agent.errors import ConfigError
from rl_agent.plan import arguments, checks, runs
from rl_agent.plan.compose import compose_config
from rl_agent.plan.environment import hub_cache, shared_environment


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan that would work, and what to tell the person who asked for it."""

    plan: Plan
    machine: checks.Machine
    work: Work | None
    notes: tuple[str, ...]
    dry_run: bool


def prepare(argv: Sequence[str], environ: Mapping[str, str]) -> Prepared:
    """Raises `UsageError` or `ConfigError`; writes nothing."""
    asked = arguments.parse(argv, environ)
    num_gpus = count_gpus(environ)
    composed = compose_config(
        asked.overrides, data_path=asked.data_path, log_path=asked.log_path, num_gpus=num_gpus
    )
    command = _command(asked)
    if command.num_nodes > 1 and not asked.dry_run:
        raise ConfigError(f"--num-nodes {command.num_nodes}: only one node can be run now; --dry-run works")
    cache = hub_cache(composed.config, environ)
    machine = checks.check_machine(composed.config, command, num_gpus=num_gpus, cache=cache, environ=environ)
    config = _with_base_model(composed.config, machine.model.name)
    plan = _plan(config, command, _hardware(num_gpus))
    work = _work(plan)
    if work is None and not asked.dry_run:
        raise ConfigError("--resume: the last run has done all its iterations; raise --max-iterations")
    notes = (*composed.notes, *shared_environment(config, environ).notes)
    return Prepared(plan, machine, work, notes, asked.dry_run)


def start(prepared: Prepared, driver_pid: int | None) -> Path:
    """Claim the log path, end what a killed run left, write the plan; returns its path."""
    plan, leftovers = prepared.plan, list(prepared.machine.leftovers)
    plan.config.log_path.mkdir(parents=True, exist_ok=True)
    if driver_pid is not None:
        run_lock.claim(plan.config.log_path, driver_pid)
    runs.end_leftovers(leftovers)
    return runs.write_plan(plan)


def _command(asked: arguments.Arguments) -> Command:
    return Command.model_validate(
        {
            "rl_phase": asked.rl_phase,
            "eval_interval": asked.eval_interval,
            "rollout_split": asked.rollout_split,
            "debug_mode": asked.debug_mode,
            "resume": asked.resume,
            "max_iterations": asked.max_iterations,
            "num_nodes": asked.num_nodes,
            "rank": asked.rank,
            "rank_weights": asked.rank_weights,
            "overrides": tuple(override.word for override in asked.overrides),
        }
    )


def _hardware(num_gpus: int) -> Hardware:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    return Hardware(num_gpus=num_gpus, cores=cores, memory_gib=round(memory_bytes / 1024**3, 1))


def _with_base_model(config: Config, name: str) -> Config:
    """A model folder is named absolutely, because later commands run elsewhere."""
    return config.model_copy(update={"model": config.model.model_copy(update={"base_model": name})})


def _plan(config: Config, command: Command, hardware: Hardware) -> Plan:
    """A fresh run, or the next attempt of the last one."""
    first = first_iteration(command, numbers_on_disk(config.paths))
    run_id, attempt = runs.new_run_id(), 1
    if command.resume:
        last = runs.latest_plan(config.paths)
        if last is None:
            raise ConfigError(f"--resume: no run was started in {config.log_path}; start without --resume")
        run_id, attempt, first = last.run_id, last.attempt + 1, last.first_iteration
        if _kind(last.command) != _kind(command):
            raise ConfigError(
                f"--resume: the last run in {config.log_path} was --rl-phase {' '.join(_kind(last.command))};"
                " use the same, or start without --resume"
            )
    return Plan(
        run_id=run_id,
        attempt=attempt,
        first_iteration=first,
        command=command,
        hardware=hardware,
        config=config,
    )


def _kind(command: Command) -> tuple[str, ...]:
    split = ("--rollout-split", command.rollout_split) if command.rollout_split else ()
    return (command.rl_phase, *split)


def _work(plan: Plan) -> Work | None:
    finished = finished_phases(plan.paths.flags, plan.run_id, plan.command.num_nodes, plan.attempt)
    return next_work(plan.command, plan.first_iteration, add_shards(finished, plan.paths))
