"""One update's inputs: dataset, `dataset_info.json`, `train.yaml`, and the optimizer's state to resume from.

    shards of the last k iterations ─► candidates ─► draw ─► examples ─► train.yaml ─► update.json
               version's trainer/, or the interrupted training ─► start ─┘

Shards are read twice, each time without the tokens: once for what decides, once for the texts of the steps
that were drawn. Everything is written anew, so that a repeated call gives the same files.
"""

import json
import logging
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rl_agent.agent.chat import ChatTokenizer
from rl_agent.config import Config, Plan
from rl_agent.engine.model import resolve_model
from rl_agent.errors import ConfigError
from rl_agent.files import remove, write_whole
from rl_agent.paths import RunPaths
from rl_agent.rollout.manifest import Part, parts_of, read_parts
from rl_agent.types import EpisodeKey
from rl_agent.update import select, versions
from rl_agent.update.export import (
    DATASET,
    VALIDATION,
    Dialogue,
    TokenTexts,
    examples,
    write_dataset,
    write_dataset_info,
)
from rl_agent.update.inputs import (
    TRAIN_FILE,
    Prepared,
    digest_datasets,
    digest_inputs,
    forget,
    last_summary,
    write_summary,
)
from rl_agent.update.optimizer import update_steps
from rl_agent.update.render import setup_of, to_yaml, training_arguments
from rl_agent.update.start import choose_start, find_interrupted, is_finished, same_update
from rl_agent.update.verify import verify_model
from rl_agent.update.weights import parameters, read_tensors, size_bytes
from rl_agent.weights.sources import local_folder

_OUTCOME = TypeAdapter(select.Outcome)
_DIALOGUE = TypeAdapter(Dialogue)
_MEDIA_TOKENS = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
)
"""Keys of a vision model's config.json."""
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
    before = last_summary(folder)
    forget(folder)
    shards = recent_shards(paths, config.llamafactory.recent_iterations)
    pool = [
        one
        for position, parts in enumerate(shards)
        for one in select.candidates(_outcomes(parts), position, config.llamafactory)
    ]
    if not pool:
        return None
    versions.adopt(paths)
    verify_model(resolve_model(config).path)
    _check_disk(config)

    rng = select.seeded(config.seed, iteration)
    drawn = select.draw(
        pool, config.llamafactory.positive_samples_to_train, config.llamafactory.recency_bias_power, rng
    )
    chosen, held_out = select.split(
        drawn, config.llamafactory.val_split_ratio, do_eval=config.llamafactory.do_eval
    )
    _export(folder, shards, chosen, held_out, _token_texts(config))

    model = resolve_model(config).path
    training = paths.training_dir(iteration)
    before = same_update(before, model, digest_datasets(folder))
    if before is not None and is_finished(training, before):
        _log.info("the training had come to its end: only publishing is left")
        write_summary(folder, replace(before, nodes=nodes, is_trained=True, files=digest_inputs(folder)))
        return folder / TRAIN_FILE
    new_steps = update_steps(len(chosen), setup.world_size, config.llamafactory)
    interrupted = find_interrupted(paths, iteration, before) if before is not None else None
    start = choose_start(plan, iteration, setup, new_steps, interrupted)
    verify_model(start.model)
    arguments = training_arguments(plan, iteration, start, setup, has_validation=bool(held_out))
    remove(training)  # what is gone on with has a second name in the resume folder
    write_whole(folder / TRAIN_FILE, to_yaml(arguments))
    summary = Prepared(
        samples=len(chosen),
        validation_samples=len(held_out),
        candidates=len(pool),
        learning_rate=config.llamafactory.learning_rate,
        started_from=model,
        steps_before=start.steps_before,
        first_step=start.first_step,
        new_steps=new_steps,
        nodes=nodes,
        is_trained=False,
        files=digest_inputs(folder),
    )
    write_summary(folder, summary)
    return folder / TRAIN_FILE


def recent_shards(paths: RunPaths, count: int) -> list[list[Part]]:
    """The files of the last `count` finished training iterations, oldest iteration first.

    Raises StoreError for one that is missing.
    """
    return [parts_of(paths, "train", iteration) for iteration in paths.iterations("train")[-count:]]


def _outcomes(parts: Sequence[Part]) -> Iterator[select.Outcome]:
    return read_parts(parts, _OUTCOME)


def _export(
    folder: Path,
    shards: Sequence[Sequence[Part]],
    chosen: Sequence[select.Candidate],
    held_out: Sequence[select.Candidate],
    tokens: TokenTexts,
) -> None:
    validation = set(held_out)
    rows: dict[str, list[dict[str, Any]]] = {DATASET: [], VALIDATION: []}
    for position, parts in enumerate(shards):
        steps: dict[EpisodeKey, list[int]] = defaultdict(list)
        for one in (*chosen, *held_out):
            if one.position == position:
                steps[one.key].append(one.step)
        for key, step, row in examples(read_parts(parts, _DIALOGUE), steps, tokens):
            is_held_out = select.Candidate(position, key, step) in validation
            rows[VALIDATION if is_held_out else DATASET].append(row)
    names = [name for name, of_name in rows.items() if of_name]
    for name in names:
        write_dataset(folder, name, rows[name])
    with_images = any("images" in row for of_name in rows.values() for row in of_name)
    write_dataset_info(folder, names, with_images=with_images)


def _token_texts(config: Config) -> TokenTexts:
    model = resolve_model(config).path
    chat = ChatTokenizer.load(model, config.model.chat_template_kwargs)
    stop = tuple(chat.decode([token_id]) for token_id in sorted(chat.eos_token_ids))
    folder = local_folder(model)
    path = folder / "config.json" if folder else None
    settings = json.loads(path.read_bytes()) if path and path.is_file() else {}
    media = tuple(chat.decode([settings[key]]) for key in _MEDIA_TOKENS if settings.get(key) is not None)
    return TokenTexts(stop, media)


def _check_disk(config: Config) -> None:
    """Raises ConfigError if the training would fill the disk."""
    folder = local_folder(resolve_model(config).path)
    if folder is None or not any(folder.glob("*.safetensors")):
        return  # the model is downloaded by the training
    needed = needed_bytes(folder, config)
    free = shutil.disk_usage(config.log_path).free
    if free < needed:
        raise ConfigError(
            f"log_path={config.log_path}: an update needs about {needed / 2**30:.1f} GiB of disk, "
            f"{free / 2**30:.1f} GiB are free; free some or choose another log_path"
        )


def needed_bytes(model: Path, config: Config) -> int:
    """Most that one update adds to the disk.

    Weights twice (LLaMA-Factory saves them in the checkpoint and beside it) in 32 bits at worst, and two
    moments of 32 bits each. What continues an optimizer is shared with the version it comes from.
    """
    tensors = read_tensors(model)
    if config.llamafactory.finetuning_type == "lora":
        return 2 * size_bytes(tensors)  # the merged model, and room for the adapter's own files
    weights = 2 * 4 * parameters(tensors)
    return weights if config.llamafactory.save_only_model else weights + 8 * parameters(tensors)
