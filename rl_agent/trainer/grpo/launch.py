"""Starts a streaming trainer, and starts it again, on the node of its run.

What it begins from is decided here, from what lies on the disk:

    its newest checkpoint builds on the served model     that checkpoint
    a model was served since (a rollback, a crash)       the checkpoint in that model's folder
    neither                                              the served model, with a fresh optimizer

With an adapter (`trainer.lora`) the weights below it are always those of the base model; what is served has
the adapter merged into it, and only a checkpoint tells the two apart.

Of several nodes, the master's alone decides that; the others read its settings file. Every start has a
number and a file of its own, so that none reads the settings of an earlier start.
"""

import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rl_agent.cluster.shared_fs.address import LOOPBACK, advertised_address, interface_name
from rl_agent.config.plan import Config, Plan
from rl_agent.config.sections.grpo import ParallelSettings, TrainingConfig
from rl_agent.engine.model import engines_model, publishes_adapter, resolve_model
from rl_agent.errors import ConfigError, DeadlineError
from rl_agent.http.tokens import is_loopback
from rl_agent.monitor.flops import ModelShape
from rl_agent.paths import RunPaths
from rl_agent.pool import run_pool
from rl_agent.served_model import versions
from rl_agent.served_model.verify import verify_model
from rl_agent.system.files import read_object, remove, write_whole
from rl_agent.tasks.load import load_tasks
from rl_agent.trainer.gpu_memory import choose, step_gib
from rl_agent.trainer.grpo.checkpoint.states import (
    STATE,
    give_up_published,
    newest_served,
    next_number,
    read_published,
    saved_steps,
)
from rl_agent.trainer.grpo.settings import (
    SharingSettings,
    StreamSettings,
    TrainerSettings,
    out_of_memory_file,
)
from rl_agent.trainer.llamafactory.launch import Rendezvous, interface_variables, rendezvous_arguments
from rl_agent.weights.settings import trainer_folder
from rl_agent.weights.store.tensor_sources import local_folder

_POLL_S = 0.1
_LESS = 0.95
"""The share of an estimate that turned out too low which the next one may be at most."""


def settings_file(plan: Plan, start: int) -> Path:
    """Return the path of the trainer's settings at that start of this attempt."""
    return plan.paths.run_dir(plan.run_id) / f"trainer-{plan.attempt}-{start}.json"


def progress_file(plan: Plan) -> Path:
    """Return the path of the file with the progress of this attempt's trainer."""
    return plan.paths.run_dir(plan.run_id) / f"trainer-{plan.attempt}.progress.json"


def write_settings(plan: Plan, *, manager: str, start: int) -> Path:
    """Settle what the trainer begins from, and write its settings. Raises ConfigError."""
    path = settings_file(plan, start)
    files = path.parent.glob(f"trainer-{plan.attempt}-*.json")
    before = [int(file.stem.rpartition("-")[2]) for file in files]
    earlier = None
    if before:
        content = (last := settings_file(plan, max(before))).read_bytes()
        earlier = TrainerSettings.model_validate_json(content)
    settings = _settings(plan, manager, earlier, ran_out=before != [] and out_of_memory_file(last).exists())
    write_whole(path, settings.model_dump_json(indent=1) + "\n")
    return path


def await_settings(plan: Plan, start: int) -> Path:
    """Wait for the settings file that the master writes. Raises DeadlineError."""
    path, limit_s = settings_file(plan, start), plan.config.cluster.start_timeout_s
    deadline = time.monotonic() + limit_s
    while not path.exists():
        if time.monotonic() >= deadline:
            raise DeadlineError(
                f"{path}: the master's trainer did not write it within cluster.start_timeout_s={limit_s:g}"
            )
        time.sleep(_POLL_S)
    return path


def verify_models(settings: Path) -> None:
    """Raises StoreError if a published model that the trainer is to read is not as it was published."""
    read = TrainerSettings.model_validate_json(settings.read_bytes())
    for folder in (read.model, read.reference):
        if folder is not None:
            verify_model(folder)


def trainer_command(plan: Plan, settings: Path, nodes: int, place: Rendezvous) -> list[str]:
    """The words of this node's process: the trainer itself, or torchrun where it has several ranks."""
    processes = plan.config.grpo.nproc_per_node or max(plan.hardware.num_gpus, 1)
    words = ["-m", "rl_agent.trainer.grpo.worker", str(settings)]
    if nodes * processes == 1:
        return [sys.executable, *words]
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *rendezvous_arguments(nodes, place, plan.config.grpo.parallel.peer_timeout_s),
        *("--nproc-per-node", str(processes), "--max-restarts", "0"),
        *words,
    ]


def trainer_environment(plan: Plan, environ: Mapping[str, str], nodes: int) -> dict[str, str]:
    binaries = str(Path(sys.executable).parent)
    environment = dict(environ) | {"PATH": f"{binaries}{os.pathsep}{environ.get('PATH', os.defpath)}"}
    environment |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONSAFEPATH": "1"}
    if token := run_pool.token(plan, environ):
        environment[plan.config.pool.token_env_var] = token
    if nodes > 1:
        environment |= interface_variables(interface_name(plan.config.cluster), environ)
    if plan.hardware.num_gpus == 0:
        processes = plan.config.grpo.nproc_per_node or 1
        threads = max(1, plan.hardware.cores // processes)
        environment["OMP_NUM_THREADS"] = environ.get("OMP_NUM_THREADS", str(threads))
        # Threads that spin while they wait are ruinous where engines run on the same cores.
        environment["OMP_WAIT_POLICY"] = environ.get("OMP_WAIT_POLICY", "PASSIVE")
    return environment


def groups_of_iteration(plan: Plan) -> int:
    """Return how many groups an iteration's rollout has."""
    env_config = plan.config.env_config
    size = env_config.train_tasks_rollout_size
    return size if size >= 0 else len(load_tasks(plan.tasks_file("train"), env_config))


def _settings(plan: Plan, manager: str, earlier: TrainerSettings | None, *, ran_out: bool) -> TrainerSettings:
    """Settle all settings; `earlier` are those of the last start, which may have run out of GPU memory."""
    before = None if earlier is None else earlier.stream
    config, grpo, paths = plan.config, plan.config.grpo, plan.paths
    model = resolve_model(config)
    served = versions.served_folder(paths)
    served_name = served.name if served is not None else ""
    engines_name = "" if publishes_adapter(plan) else served_name
    engines_version = engines_model(plan).weight_version
    output = paths.streaming
    store = trainer_folder(plan)
    is_set_back = newest_served(output / "checkpoints") not in (None, served_name)
    if is_set_back and next_number(paths) > model.weight_version + 1:
        remove(store)
        give_up_published(output, model.weight_version)
    start = _start(paths, served, output)
    if grpo.lora.rank and served is not None and start is None and not saved_steps(output / "checkpoints"):
        raise ConfigError(
            f"trainer.lora: {served} was made without an adapter; for one on top of it take it as"
            " model_config.base_model, with another --log-path"
        )
    folder = _folder_of(config.model.base_model if grpo.lora.rank else model.path)
    sections = {name: getattr(grpo, name) for name in TrainingConfig.model_fields}
    return TrainerSettings(
        **sections | {"parallel": _parallel(plan, folder, earlier, ran_out=ran_out)},
        model=folder,
        reference=_folder_of(config.model.base_model) if grpo.loss.kl_in != "none" else None,
        first_version=model.weight_version,
        output=output,
        metrics=paths.metrics,
        export_dtype=grpo.export_dtype or _dtype_of(config),
        seed=config.seed,
        groups=groups_of_iteration(plan),
        stream=StreamSettings(
            log_path=config.log_path,
            run_id=plan.run_id,
            group_size=config.rollout.group_size,
            streamed=grpo.streamed,
            first_iteration=plan.first_iteration,
            last_iteration=plan.last_iteration,
            ends_with_evaluation=plan.ends_with_evaluation,
            start=start,
            served=served_name,
            engines_model=before.engines_model if before is not None else engines_name,
            engines_version=before.engines_version if before is not None else engines_version,
            next_version=next_number(paths),
            published=read_published(output).of_run(plan.run_id),
            manager=manager,
            manager_file=run_pool.url_file(plan),
            manager_token_env_var=config.pool.token_env_var,
            manager_tls_ca=run_pool.tls_ca(plan),
            silence_timeout_s=config.cluster.phase_timeout_s,
            known_timeout_s=config.cluster.start_timeout_s,
            store=store,
            progress=progress_file(plan),
            keep_versions=grpo.keep_versions,
            sharing=_sharing(plan),
            weights=config.weights.model_copy(
                update={"host": config.weights.host or (_own_address(config),)}
            ),
        ),
    )


def _parallel(
    plan: Plan, folder: Path, earlier: TrainerSettings | None, *, ran_out: bool
) -> ParallelSettings:
    """Return the section with what it leaves to the GPUs' memory chosen.

    A step is estimated to take no more than at the start before, and less where that one ran out of memory.
    """
    grpo, device_gib = plan.config.grpo, plan.hardware.gpu_memory_gib
    shape = ModelShape.of(read_object(folder / "config.json"))
    if shape is None or not device_gib:
        return grpo.parallel
    ranks = (grpo.nproc_per_node or max(plan.hardware.num_gpus, 1)) * plan.command.num_nodes
    engine_share = plan.config.engine.gpu_memory_utilization
    names = ("activation_checkpointing", "offload_optimizer")
    most_gib = math.inf
    if earlier is not None:
        share, offloads = (getattr(earlier.parallel, name) for name in names)
        most_gib = step_gib(shape, grpo, ranks, share=share, offloads=offloads) * (_LESS if ran_out else 1.0)
    chosen = choose(shape, grpo, ranks, device_gib=device_gib, engine_share=engine_share, most_gib=most_gib)
    return grpo.parallel.model_copy(update={name: getattr(chosen, name) for name in names})


def _sharing(plan: Plan) -> SharingSettings | None:
    if not plan.takes_turns:
        return None
    return SharingSettings(
        placement=plan.config.grpo.placement,
        turn=run_pool.turn_file(plan),
        engine=run_pool.worker_name(plan),
        timeout_s=plan.config.engine.start_timeout_s,
        resamples=plan.config.num_gen_batches > 1,
    )


def _start(paths: RunPaths, served: Path | None, output: Path) -> Path | None:
    """Find the checkpoint of the served model, where the trainer's own are not of it and are dropped."""
    name = served.name if served is not None else ""
    checkpoints = output / "checkpoints"
    if newest_served(checkpoints) == name:
        return None
    remove(checkpoints)
    start = served / versions.TRAINER if served is not None else None
    return start if start is not None and (start / STATE).is_file() else None


def _folder_of(model: str) -> Path:
    folder = local_folder(model)
    if folder is None:
        raise ConfigError(f"{model}: is not on this machine yet; trainer.kind=grpo reads it from the disk")
    return folder


def _dtype_of(config: Config) -> str:
    """Return the type in which the engines hold the weights."""
    dtype = config.engine.dtype
    is_auto_on_cpu = dtype == "auto" and config.engine.device == "cpu"
    return "float32" if dtype in ("float32", "float") or is_auto_on_cpu else "bfloat16"


def _own_address(config: Config) -> str:
    """Return the address at which engines of this pool reach this machine."""
    return LOOPBACK if is_loopback(config.pool.host) else advertised_address(config.cluster)
