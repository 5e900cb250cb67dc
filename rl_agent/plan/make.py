"""Makes the plan of a start: arguments and configuration, checked against this machine.

    prepare ─► start                         the master: a run of its own, or the next attempt of the last one
    prepare ─► wait_for_run ─► start         a worker: its part of the master's run
    wait_for_run ─► prepare ─► start         a node that joins: the master's run, with its own engine

`prepare` reads only, so `--dry-run` may use it; `start` is the one that writes.
"""

import filecmp
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_agent.cluster.protocol import shared_config
from rl_agent.cluster.protocol.flags import finished_phases
from rl_agent.cluster.protocol.schedule import (
    PendingPhases,
    add_shards,
    finished_on_disk,
    first_iteration,
    next_work,
)
from rl_agent.cluster.shared_fs import run_lock
from rl_agent.config.overrides.compose import ComposedConfig
from rl_agent.config.overrides.words import Override, parse_override
from rl_agent.config.plan import Command, Config, Hardware, Plan
from rl_agent.engine.gpus import count_gpus, smallest_memory_gib
from rl_agent.errors import ConfigError, NothingLeft
from rl_agent.plan import arguments, checks, runs
from rl_agent.plan.attach import check_not_late, check_reach, wait_for_run
from rl_agent.plan.changes import check_changes
from rl_agent.plan.compose import compose_config
from rl_agent.plan.environment import hub_cache, shared_environment
from rl_agent.system.files import write_whole
from rl_agent.tasks.load import naming_lines
from rl_agent.trainer.llamafactory.dataset.unseen import has_ended, iterations_read, outlook, why_ended
from rl_agent.types import Split
from rl_agent.weights.settings import base_folder
from rl_agent.weights.store.owner_lock import remove_orphaned


@dataclass(frozen=True, slots=True)
class PreparedStart:
    """A plan that would work, and what to tell the person who asked for it."""

    plan: Plan
    machine: checks.Machine
    work: PendingPhases | None
    notes: tuple[str, ...]
    task_files: Mapping[Split, Path]
    """The run's own copies or, before it has any, the files to copy."""
    dry_run: bool
    verbose: bool


def prepare(argv: Sequence[str], environ: Mapping[str, str]) -> PreparedStart:
    """Make the plan of a start; writes nothing. Raises `UsageError` or `ConfigError`."""
    args = arguments.parse(argv, environ)
    num_gpus = count_gpus(environ)
    composed = _compose(args, args.overrides, num_gpus)
    command, masters = args.command, None
    if command.join:
        if not args.dry_run:
            check_not_late(args.log_path, environ)
        masters = _run_to_join(args, composed.config)
        composed = _joined(args, masters, num_gpus)
        command = command.model_copy(update=_of_the_run(masters.command))
    cache = hub_cache(composed.config, environ)
    before = None if command.join else _resumed(composed.config, command)
    task_files, changed_files = _task_files(composed.config, command, masters or before)
    with naming_lines(task_files.values(), composed.config.env_config):
        machine = checks.check_machine(
            composed.config,
            command,
            task_files,
            num_gpus=num_gpus,
            cache=cache,
            environ=environ,
            plays=args.dry_run,
        )
    config = _with_base_model(composed.config, machine.model.name)
    notes = (*composed.notes, *shared_environment(config, environ).notes, *machine.notes, *changed_files)
    if masters is not None:
        plan, work = _part_of(masters, config, command, _hardware(num_gpus)), None
    else:
        plan = _plan(config, command, _hardware(num_gpus), before)
        work = _work(plan)
        if work is None and command.rank == 0 and not args.dry_run:
            raise NothingLeft("--resume: the last run has done all its iterations; raise --max-iterations")
        if before is not None and (changes := check_changes(before, plan, work)):
            notes = (*notes, changes)
        if command.rl_phase == "update" and command.rank == 0:
            if not args.dry_run and not (command.max_iterations or iterations_read(plan.config)):
                raise ConfigError(
                    f"--rl-phase update: {why_ended(plan)}; collect some first, with"
                    " --rl-phase rollout --rollout-split train-only"
                )
            # With nothing to do, the end says why.
            notes = notes if has_ended(plan) and not args.dry_run else (*notes, outlook(plan))
    return PreparedStart(plan, machine, work, notes, task_files, args.dry_run, args.verbose)


def start(prepared: PreparedStart, driver_pid: int | None) -> Path:
    """Claim the log path, end what a killed run left, write tasks and plan; returns the plan's path.

    A worker waits for its master first. Raises DeadlineError if none comes, ConfigError if it wants another
    run than this node.
    """
    plan, leftovers = prepared.plan, list(prepared.machine.leftovers)
    log_path, cluster = plan.config.log_path, plan.config.cluster
    log_path.mkdir(parents=True, exist_ok=True)
    runs.end_leftovers(leftovers)
    for folder in remove_orphaned(base_folder(plan.config.weights)):
        _report(f"removing {folder}, the weights of a killed run")
    if plan.is_master:
        if driver_pid is not None:
            run_lock.claim(log_path, driver_pid, cluster.lease_s)
        for split, path in prepared.task_files.items():
            if path != (own := plan.tasks_file(split)):
                own.parent.mkdir(parents=True, exist_ok=True)
                write_whole(own, path.read_bytes())
    elif not plan.command.join:
        who = f"rank {plan.command.rank}"
        masters = wait_for_run(log_path, cluster, who, _report)
        shared_config.check_same_config(plan.config, masters.config, who)
        _check_same_command(plan.command, masters.command, who)
        _check_same_place(plan, masters, who)
        check_reach(plan.config, who)
        plan = _part_of(masters, plan.config, plan.command, plan.hardware)
    return runs.write_plan(plan, driver_pid)


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _compose(
    args: arguments.Arguments, overrides: Sequence[Override], num_gpus: int
) -> ComposedConfig[Config]:
    return compose_config(overrides, data_path=args.data_path, log_path=args.log_path, num_gpus=num_gpus)


def _task_files(
    config: Config, command: Command, run: Plan | None
) -> tuple[dict[Split, Path], tuple[str, ...]]:
    """Return the task files of a start, and what a resume takes no notice of.

    Only a fresh run reads those of the data path: `run`, which goes on or is joined, has its own copies.
    """
    env_config = config.env_config
    files = {split: env_config.tasks_file(split, config.data_path) for split in checks.splits_of(command)}
    if run is None:
        return files, ()
    notes = []
    for split, path in files.items():
        own = config.paths.tasks(run.run_id, split)
        if not own.exists():  # of a release without copies, or not visible here yet
            continue
        if path.is_file() and not command.join and not filecmp.cmp(own, path, shallow=False):
            notes.append(
                f"--resume: {path} is not what the run began with, which goes on with its copy {own}; start"
                " without --resume to use it as it is now"
            )
        files[split] = own
    return files, tuple(notes)


def _run_to_join(args: arguments.Arguments, own: Config) -> Plan:
    """Return the master's plan of the live run; a dry run takes the last one."""
    if not args.dry_run:
        return wait_for_run(args.log_path, own.cluster, "--join", _report)
    latest = runs.latest_plan(own.paths)
    if latest is None:
        raise ConfigError(f"--join: no run was started in {args.log_path}")
    return latest


def _joined(args: arguments.Arguments, masters: Plan, num_gpus: int) -> ComposedConfig[Config]:
    """Return the run's configuration with this node's engine, as the overrides of both describe it."""
    here = {override.name for override in args.overrides}
    of_run = [parse_override(word, "the run") for word in masters.command.overrides]
    words = [*(override for override in of_run if override.name not in here), *args.overrides]
    own = _compose(args, words, num_gpus)
    return ComposedConfig(shared_config.config_for_joiner(masters.config, own.config, here), own.notes)


def _of_the_run(command: Command) -> dict[str, object]:
    """Return what a node that joins has to do: the rollouts of the run, of both splits if it evaluates."""
    return {"rollout_split": command.rollout_split, "num_nodes": command.num_nodes}


def _part_of(masters: Plan, config: Config, command: Command, hardware: Hardware) -> Plan:
    """This node's plan in the run of its master."""
    return Plan(
        run_id=masters.run_id,
        attempt=masters.attempt,
        first_iteration=masters.first_iteration,
        command=command,
        hardware=hardware,
        config=config,
    )


_COMMON_FLAGS = ("rl_phase", "eval_interval", "final_eval", "rollout_split", "num_nodes", "rank_weights")


def _check_same_command(mine: Command, masters: Command, who: str) -> None:
    for name in _COMMON_FLAGS:
        here, there = getattr(mine, name), getattr(masters, name)
        if here != there:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{who} has {flag} {_shown(here)}, the master has {_shown(there)}; use the same"
            )


def _check_same_place(mine: Plan, masters: Plan, who: str) -> None:
    """A streaming trainer is one program on all nodes: its checkpoints have one name."""
    here, there = mine.config.log_path, masters.config.log_path
    if mine.config.is_streaming and mine.command.rl_phase == "both" and here != there:
        raise ConfigError(
            f"{who} has --log-path {here}, the master has {there}; trainer.kind=grpo needs it at the same"
            " place on all nodes"
        )


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _hardware(num_gpus: int) -> Hardware:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    return Hardware(
        num_gpus=num_gpus,
        cores=cores,
        memory_gib=round(memory_bytes / 1024**3, 1),
        gpu_memory_gib=round(smallest_memory_gib(), 1) if num_gpus else 0.0,
    )


def _with_base_model(config: Config, name: str) -> Config:
    """A model folder is named absolutely, because later commands run elsewhere."""
    return config.model_copy(update={"model": config.model.model_copy(update={"base_model": name})})


def _resumed(config: Config, command: Command) -> Plan | None:
    """The last start of the run that is to go on; None for a fresh run, and on a worker."""
    if not command.resume or command.rank != 0:
        return None
    last = runs.latest_plan(config.paths)
    if last is None:
        raise ConfigError(f"--resume: no run was started in {config.log_path}; start without --resume")
    if _kind(last.command) != _kind(command):
        raise ConfigError(
            f"--resume: the last run in {config.log_path} was --rl-phase {' '.join(_kind(last.command))};"
            " use the same, or start without --resume"
        )
    return last


def _plan(config: Config, command: Command, hardware: Hardware, before: Plan | None) -> Plan:
    """Return a fresh run, or the next attempt of the one before."""
    if before is not None:
        run_id, attempt, first = before.run_id, before.attempt + 1, before.first_iteration
    else:
        run_id, attempt = runs.new_run_id(), 1
        first = first_iteration(command, finished_on_disk(config.paths))
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


def _work(plan: Plan) -> PendingPhases | None:
    finished = finished_phases(plan.paths.flags, plan.run_id, plan.attempt)
    return next_work(
        plan.command,
        plan.first_iteration,
        add_shards(finished, plan.paths),
        is_streaming=plan.config.is_streaming,
    )
