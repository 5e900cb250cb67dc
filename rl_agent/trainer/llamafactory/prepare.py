"""Prepares the inputs of an update: dataset, `train.yaml`, and the optimizer's state to resume from.

    samples ─────────────────────────────────────────────────► dataset/ ─► train.yaml ─► update.json
    version's trainer/, or the interrupted training ─► start ─────────────────┘

A repeated call writes the same files again.
"""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

from rl_agent.chat.context.image_tokens import ImageTokens
from rl_agent.config.plan import Config, Plan
from rl_agent.errors import ConfigError
from rl_agent.served_model.verify import verify_files
from rl_agent.served_model.weights import parameters, read_tensors, size_bytes
from rl_agent.system.files import remove, write_whole
from rl_agent.trainer.llamafactory.dataset.check import check_datasets
from rl_agent.trainer.llamafactory.dataset.export import write_datasets
from rl_agent.trainer.llamafactory.dataset.samples import collect_samples
from rl_agent.trainer.llamafactory.inputs import (
    TRAIN_FILE,
    UpdateSummary,
    digest_dataset,
    digest_settings,
    withdraw_summary,
    write_summary,
)
from rl_agent.trainer.llamafactory.model import ServedVersion
from rl_agent.trainer.llamafactory.optimizer.checkpoints import has_reached
from rl_agent.trainer.llamafactory.optimizer.optimizer import update_steps
from rl_agent.trainer.llamafactory.render import setup_of, to_yaml, training_arguments
from rl_agent.trainer.llamafactory.start import choose_start

_log = logging.getLogger(__name__)


def prepare(plan: Plan, iteration: int, nodes: int = 1) -> Path | None:
    """Write the inputs of an update that `nodes` nodes train; returns the path of `train.yaml`.

    None if there is nothing to train on.
    Raises StoreError for a damaged shard or model, ConfigError for settings or a disk that do not allow it.
    """
    config, paths = plan.config, plan.paths
    setup = setup_of(plan, nodes)
    folder = paths.update_dir(iteration)
    folder.mkdir(parents=True, exist_ok=True)
    before = withdraw_summary(folder)
    model = ServedVersion.of(config)
    verify_files(model.files, model.record)
    samples = collect_samples(config, iteration, model)
    if not samples.training:
        return None
    _check_disk(config, model.files)
    dataset = write_datasets(folder, samples.training.values(), samples.validation.values())
    check_datasets(
        dataset,
        {"train": samples.training, "validation": samples.validation},
        ImageTokens.load(model.files),
        mask_history=config.llamafactory.mask_history,
    )

    training = paths.training_dir(iteration)
    files = digest_dataset(folder)
    if before is not None and not before.is_of(model.path, files):
        before = None
    if before is not None and has_reached(training, before.first_step + before.new_steps):
        _log.info("the training had reached its end: only publishing is left")
        files |= digest_settings(folder)
        write_summary(folder, replace(before, nodes=nodes, is_trained=True, files=files))
        return folder / TRAIN_FILE
    new_steps = update_steps(len(samples.training), setup.world_size, config.llamafactory)
    start = choose_start(plan, iteration, model, setup, new_steps, before)
    arguments = training_arguments(plan, iteration, start, setup, has_validation=bool(samples.validation))
    remove(training)  # a checkpoint that is resumed has a second name in the resume folder
    write_whole(folder / TRAIN_FILE, to_yaml(arguments))
    summary = UpdateSummary(
        samples=len(samples.training),
        validation_samples=len(samples.validation),
        candidates=samples.candidates,
        iterations=samples.iterations,
        tasks=samples.tasks,
        left_out=samples.left_out,
        learning_rate=config.llamafactory.learning_rate,
        started_from=model.path,
        steps_before=start.steps_before,
        first_step=start.first_step,
        new_steps=new_steps,
        nodes=nodes,
        is_trained=False,
        files=files | digest_settings(folder),
    )
    write_summary(folder, summary)
    return folder / TRAIN_FILE


def _check_disk(config: Config, folder: Path) -> None:
    """Raises ConfigError if the training would fill the disk."""
    if not any(folder.glob("*.safetensors")):
        return  # the model is downloaded by the training
    needed = needed_bytes(folder, config)
    free = shutil.disk_usage(config.log_path).free
    if free < needed:
        raise ConfigError(
            f"log_path={config.log_path}: an update needs about {needed / 2**30:.1f} GiB of disk, "
            f"{free / 2**30:.1f} GiB are free; free some or choose another log_path"
        )


def needed_bytes(model: Path, config: Config) -> int:
    """Estimate the disk space that one update needs at most.

    LLaMA-Factory saves the weights twice, in 32 bits at worst, and two moments of 32 bits each. A resumed
    optimizer shares its files with the version that it comes from.
    """
    tensors = read_tensors(model)
    if config.llamafactory.finetuning_type == "lora":
        return 2 * size_bytes(tensors)  # the merged model, and room for the adapter's own files
    weights = 2 * 4 * parameters(tensors)
    return weights if config.llamafactory.save_only_model else weights + 8 * parameters(tensors)
