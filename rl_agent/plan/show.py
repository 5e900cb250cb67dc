"""The plan as text, for `--dry-run`: in short, or with `--verbose` with every key."""

import math
import shlex
from collections.abc import Mapping

import yaml

from rl_agent.config.plan import Plan
from rl_agent.engine.server import data_parallel_size, server_argv
from rl_agent.plan.checks import splits_of, starts_engine
from rl_agent.plan.disk import gib
from rl_agent.plan.environment import hub_cache, shared_environment
from rl_agent.plan.make import PreparedStart
from rl_agent.trainer.llamafactory.launch import Rendezvous, training_command
from rl_agent.trainer.llamafactory.render import setup_of
from rl_agent.trainer.llamafactory.template import choose_template


def show(prepared: PreparedStart, environ: Mapping[str, str]) -> str:
    plan = prepared.plan
    sections = {
        "run": _run(prepared),
        "paths": _paths(plan, environ),
        "machine": _machine(prepared),
        "commands": _commands(prepared),
    }
    if prepared.verbose:
        sections |= {"environment": _environment(plan, environ), "configuration": _configuration(plan)}
    else:
        overrides = plan.command.overrides or ("every key has its default",)
        sections["settings"] = "\n".join((*overrides, "(--dry-run --verbose prints every key and variable)"))
    sections["notes"] = "\n".join(prepared.notes) or "none"
    return "\n\n".join(f"[{title}]\n{text}" for title, text in sections.items())


def _environment(plan: Plan, environ: Mapping[str, str]) -> str:
    variables = shared_environment(plan.config, environ).variables
    return "\n".join(f"{name}={_hidden(name, value)}" for name, value in sorted(variables.items()))


def _configuration(plan: Plan) -> str:
    values = plan.config.model_dump(mode="json", by_alias=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True).rstrip()


def _run(prepared: PreparedStart) -> str:
    plan, command, work = prepared.plan, prepared.plan.command, prepared.work
    is_update = command.rl_phase == "update"
    limit = command.max_iterations or f"no limit (until {'nothing is new' if is_update else 'stopped'})"
    last = ", then an evaluation" if plan.ends_with_evaluation else ""
    begins = f"iteration {work.iteration}: {', '.join(work.phases)}" if work else "nothing is left to do"
    in_files = prepared.machine.num_in_files
    counts = [
        f"{n} of {in_files[split]} {split} tasks{' (with repeats)' if n > in_files[split] else ''}"
        for split, n in prepared.machine.num_tasks.items()
    ]
    tasks, attempts = ", ".join(counts) or "none", _counted(plan.config.rollout.group_size, "attempt")
    return (
        f"phase           {command.rl_phase}\n"
        f"begins with     {begins}\n"
        f"iterations      {limit}{last}\n"
        f"tasks           per iteration: {tasks}; {attempts} per train task\n"
        f"{_learning(prepared)}"
        f"nodes           {command.num_nodes} (this is rank {command.rank})\n"
        f"debug mode      {'on: the engine is external' if command.debug_mode else 'off'}"
    )


def _learning(prepared: PreparedStart) -> str:
    """Describe how responses are sampled, and how an update learns from them."""
    plan, policy = prepared.plan, prepared.plan.config.policy_config
    temperatures = f"{policy.temperature_of('train'):g}, test {policy.temperature_of('test'):g}"
    sampling = f"sampling        temperature {temperatures}; at most {policy.max_new_tokens} new tokens\n"
    if plan.command.rl_phase == "rollout":
        return sampling
    if plan.config.is_streaming:
        rate, steps = plan.config.grpo.optimizer.learning_rate, plan.config.grpo.mini_batches
        episodes = prepared.machine.num_tasks.get("train", 0) * plan.config.rollout.group_size
        size = f"batch {episodes / steps:,.0f} episodes, {_counted(steps, 'optimizer step')} per update"
    else:
        trainer, setup = plan.config.llamafactory, setup_of(plan, plan.command.num_nodes)
        rate = trainer.learning_rate
        batch = trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps * setup.world_size
        samples = trainer.positive_samples_to_train
        steps = math.ceil(math.ceil(samples / batch) * trainer.num_train_epochs)
        size = f"batch {batch} steps of episodes, at most {_counted(steps, 'optimizer step')} per update"
        template = choose_template(plan.config.model, prepared.machine.model.config or {})
        size += (
            f"\nsamples         at most trainer.cutoff_len={trainer.cutoff_len} tokens;"
            f" model_config.template={template or 'chosen after the download'}"
        )
    return f"{sampling}training        learning rate {rate:g}; {size}\n"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _paths(plan: Plan, environ: Mapping[str, str]) -> str:
    paths, config = plan.paths, plan.config
    return (
        f"data            {config.data_path}\n"
        f"log             {config.log_path}\n"
        f"train tasks     {config.env_config.tasks_file('train', config.data_path)}\n"
        f"test tasks      {config.env_config.tasks_file('test', config.data_path)}\n"
        f"trajectories    {paths.trajectory_dir('train')}, {paths.trajectory_dir('test')}\n"
        f"served model    {paths.model_link}\n"
        f"models          {paths.checkpoints}\n"
        f"run             {paths.run_dir('RUN_ID')}\n"
        f"hub cache       {hub_cache(config, environ)}"
    )


def _machine(prepared: PreparedStart) -> str:
    plan, machine = prepared.plan, prepared.machine
    engine = plan.config.engine
    size = gib(machine.model.size_bytes) if machine.model.folder else "to be downloaded"
    leftovers = "; ".join(map(str, machine.leftovers)) or "none"
    return (
        f"GPUs            {plan.hardware.num_gpus} visible; tensor parallel {engine.tensor_parallel_size},"
        f" data parallel {data_parallel_size(plan.config, plan.hardware.num_gpus)}\n"
        f"cores, memory   {plan.hardware.cores}, {plan.hardware.memory_gib} GiB\n"
        f"base model      {machine.model.name} ({size})\n"
        f"engine          {_engine(plan)}\n"
        f"disk            about {gib(machine.disk.needed)} needed, {gib(machine.disk.free)} free"
        f" at {machine.disk.folder}\n"
        f"stale processes {leftovers}"
    )


def _engine(plan: Plan) -> str:
    pool = plan.config.pool
    if not plan.config.is_pooled:
        return plan.config.engine.base_url
    own = "this node's and any that join" if pool.local_engine else "those that join"
    return f"{own} the pool at {pool.host}:{pool.port}"


def _commands(prepared: PreparedStart) -> str:
    """Return the processes of an iteration, in order; PLAN stands for the plan file of the run."""
    plan = prepared.plan
    command, iteration = plan.command, prepared.work.iteration if prepared.work else plan.first_iteration
    verb = "python -m rl_agent.cli"
    lines = []
    if command.rl_phase != "update" and plan.config.is_pooled and plan.is_master:
        lines.append(f"{verb} manager --plan PLAN")
    if starts_engine(plan.config, command):
        is_pooled = plan.config.is_pooled
        lines += [f"{verb} join-pool --plan PLAN, at a free port:"] if is_pooled else []
        lines.append(shlex.join(server_argv(plan)))
    if plan.config.is_streaming and command.rl_phase == "both":
        lines += _streaming_trainer(plan)
    splits = splits_of(command)
    for split in reversed(splits) if plan.config.is_streaming else splits:  # as `phases_of` orders them
        lines.append(f"{verb} rollout --plan PLAN --iteration {iteration} --split {split}")
    if command.rl_phase != "rollout" and not plan.config.is_streaming:
        setup = setup_of(plan, command.num_nodes)
        train = training_command(plan, iteration, setup, Rendezvous(command.rank, "MASTER"))
        lines.append(f"{verb} prepare-update --plan PLAN --iteration {iteration} --nodes {setup.nodes}")
        lines.append(shlex.join(train))
        lines.append(f"{verb} publish --plan PLAN --iteration {iteration}")
    return "\n".join(lines)


def _streaming_trainer(plan: Plan) -> list[str]:
    from rl_agent.trainer.grpo.launch import settings_file, trainer_command

    nodes, node_rank = plan.command.num_nodes, plan.command.rank
    verb = "python -m rl_agent.cli stream-train --plan PLAN --start 1"
    if nodes > 1:
        verb += f" --nodes {nodes} --node-rank {node_rank} --master MASTER:PORT"
    command = trainer_command(plan, settings_file(plan, 1), nodes, Rendezvous(node_rank, "MASTER"))
    return [f"{verb}, all the time:", shlex.join(command)]


def _hidden(name: str, value: str) -> str:
    return "(set)" if name.endswith("_KEY") else value
