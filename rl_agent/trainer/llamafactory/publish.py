"""Publishes a finished training as the served model.

    training-N/checkpoint-K ─ check ─► version-V.tmp ─ fsync ─► version-V ─ symlink ─► model.pt ─► prune
                                 └── PublishError: the served model is left alone

A crash at any point leaves the old or the new model served, whole; the next publish removes what is left. A
second publish of the same training returns the version that the first one made.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_agent.config.plan import Plan
from rl_agent.engine.model import ResolvedModel, resolve_model
from rl_agent.errors import PublishError
from rl_agent.paths import RunPaths
from rl_agent.served_model import versions
from rl_agent.served_model.checks import check_model
from rl_agent.served_model.digest import digest_files
from rl_agent.served_model.verify import verify_model
from rl_agent.served_model.weights import read_tensors
from rl_agent.system.files import link_file, link_tree, remove, sync, sync_tree, write_whole
from rl_agent.trainer.llamafactory.inputs import read_summary
from rl_agent.trainer.llamafactory.launch import merge_command, training_environment
from rl_agent.trainer.llamafactory.model import ServedVersion
from rl_agent.trainer.llamafactory.optimizer.checkpoints import STATE, find_checkpoint, global_step
from rl_agent.trainer.llamafactory.render import setup_of, to_yaml
from rl_agent.trainer.llamafactory.template import choose_template

_ADAPTER = "adapter_config.json"
_NOT_SERVED = re.compile(
    r"^(optimizer|scheduler|scaler|rng_state.*|training_args)\.(pt|pth|bin)$|^trainer_(state|log)\.json"
    r"|^(train|all|eval)_results\.json$|^training_.*\.png$|^latest$|^zero_to_(fp32|torch)\.py$|^README\.md$|^Modelfile$"
    r"|^adapter_"
)
"""Files of a checkpoint that no engine needs; pickles among them are never put where an engine reads."""
_TORCH_DTYPE = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def publish(plan: Plan, iteration: int, environ: Mapping[str, str], now: float) -> ResolvedModel:
    """Serve the model that the training of `iteration` made; `now` is in seconds since the epoch.

    Raises PublishError if there is none or it cannot be served, StoreError if an adapter's base model has
    changed since it was published; then nothing is changed.
    """
    paths = plan.paths
    checkpoint = find_checkpoint(paths.training_dir(iteration))
    served = ServedVersion.of(plan.config)
    if not _is_published(plan, iteration, served, checkpoint):
        if checkpoint is None:
            raise PublishError(f"{paths.training_dir(iteration)}: the training left no finished checkpoint")
        is_adapter = (checkpoint / _ADAPTER).is_file()
        model = _merge(plan, iteration, served, checkpoint, environ) if is_adapter else checkpoint
        check_model(model, served.files)
        folder = _make_version(plan, iteration, model, checkpoint, served.folder, now)
        versions.switch(paths, folder)
    versions.prune(paths, plan.config.llamafactory.keep_versions)
    _drop_training_weights(paths)
    return resolve_model(plan.config)


def _is_published(plan: Plan, iteration: int, served: ServedVersion, checkpoint: Path | None) -> bool:
    """Return whether the served version was made from this training."""
    record, folder = served.record, served.folder
    if folder is None or record is None or (record.run_id, record.iteration) != (plan.run_id, iteration):
        return False
    return checkpoint is None or (folder / versions.TRAINER / STATE).samefile(checkpoint / STATE)


def _make_version(
    plan: Plan, iteration: int, model: Path, checkpoint: Path, served: Path | None, now: float
) -> Path:
    """Make the folder of a new version, complete and durable, beside the served one."""
    paths = plan.paths
    summary = read_summary(paths.update_dir(iteration))
    version = versions.next_version(paths)
    folder = paths.version_dir(version)
    growing = folder.with_name(folder.name + ".tmp")
    remove(growing)
    growing.mkdir(parents=True)
    for entry in model.iterdir():
        if entry.is_file() and not _NOT_SERVED.match(entry.name):
            link_file(entry, growing / entry.name)
    link_tree(checkpoint, growing / versions.TRAINER)
    served_files = [entry for entry in growing.iterdir() if entry.is_file()]
    trainer_files = [entry for entry in (growing / versions.TRAINER).rglob("*") if entry.is_file()]
    record = versions.Published(
        weight_version=version,
        previous=served.name if served is not None else None,
        ancestors=tuple(sorted(versions.lineage(paths))),
        run_id=plan.run_id,
        iteration=iteration,
        learning_rate=summary.learning_rate,
        samples=summary.samples,
        update_steps=summary.steps_before - summary.first_step + global_step(checkpoint),
        created_at=now,
        trained_on=tuple(summary.iterations),
        files=digest_files(sorted(served_files)),
        trainer_files=digest_files(sorted(trainer_files), below=growing / versions.TRAINER),
    )
    versions.write_record(growing, record)
    sync_tree(growing)
    growing.rename(folder)
    sync(folder.parent)
    return folder


def _merge(
    plan: Plan, iteration: int, served: ServedVersion, adapter: Path, environ: Mapping[str, str]
) -> Path:
    """Merge an adapter into its base model, because engines serve whole models. Raises PublishError."""
    folder = plan.paths.training_dir(iteration) / "merged"
    remove(folder)
    yaml = plan.paths.update_dir(iteration) / "merge.yaml"
    write_whole(yaml, to_yaml(_merge_arguments(plan, served, adapter, folder)))
    log = plan.paths.update_dir(iteration) / "merge.log"
    cache = plan.paths.update_dir(iteration) / "cache"
    environment = training_environment(setup_of(plan), environ, cache)
    timeout_s = plan.config.llamafactory.timeout_s
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                merge_command(yaml), env=environment, stdout=output, stderr=output, timeout=timeout_s
            )
        except subprocess.TimeoutExpired as error:
            raise PublishError(f"{adapter}: merging took more than {timeout_s:.0f} s; see {log}") from error
    if done.returncode != 0:
        raise PublishError(f"{adapter}: merging failed with exit code {done.returncode}; see {log}")
    return folder


def _merge_arguments(plan: Plan, served: ServedVersion, adapter: Path, folder: Path) -> dict[str, Any]:
    base = json.loads((adapter / _ADAPTER).read_bytes())["base_model_name_or_path"]
    files = verify_model(base)
    dtypes = {tensor.dtype for tensor in read_tensors(files).values()} if files is not None else set()
    dtype = _TORCH_DTYPE.get(dtypes.pop(), "auto") if len(dtypes) == 1 else "auto"
    template = choose_template(plan.config.model, served.config)
    return {
        "model_name_or_path": base,
        "adapter_name_or_path": str(adapter),
        **({} if template is None else {"template": template}),
        "finetuning_type": "lora",
        "trust_remote_code": plan.config.model.trust_remote_code,
        "export_dir": str(folder),
        "export_device": "cpu",
        "infer_dtype": dtype,  # "auto" would halve a 32-bit model's precision
    }


def _drop_training_weights(paths: RunPaths) -> None:
    """Delete the weights of finished trainings; their logs stay."""
    for training in paths.checkpoints.glob("training-*"):
        for entry in training.iterdir():
            if entry.is_dir() or entry.suffix in (".safetensors", ".bin", ".pt", ".pth"):
                remove(entry)
    for folder in paths.update_dir(0).parent.glob("iteration*"):
        for leftover in (*folder.glob("resume*"), folder / "cache"):
            remove(leftover)
