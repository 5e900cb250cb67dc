"""Makes a trainer's weights the model at `model.pt`, which resumes, rollbacks and late engines start from.

The model's folder holds the checkpoint it was made from under `trainer/`, so that a training goes on from
any model that is kept with the optimizer that belongs to it.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from rl_agent.engine.model import SERVED
from rl_agent.paths import RunPaths
from rl_agent.served_model import versions
from rl_agent.served_model.checks import check_model
from rl_agent.served_model.digest import digest_files
from rl_agent.system.files import link_tree, remove, sync, sync_tree


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """The version, run and iteration that a model comes from."""

    version: int
    run_id: str
    iteration: int
    numbers: dict[str, float]
    """The metrics of the iteration; a process that only publishes what an earlier one trained has those of no
    step."""


def promote(
    paths: RunPaths,
    model: Path,
    checkpoint: Path,
    origin: ModelOrigin,
    *,
    current: Path,
    keep: int,
    pinned: Collection[str],
) -> None:
    """Serve `model`, a folder that is taken over, from now on.

    `pinned` models stay, besides the last `keep`. Raises PublishError for a model that cannot be served; what
    was served stays then.
    """
    check_model(model, current)
    served = versions.adopt(paths)
    for name in (versions.RECORD, SERVED):  # of the version whose tokenizer it was given
        remove(model / name)
    record = versions.Published(
        weight_version=origin.version,
        previous=served.name if served is not None else None,
        ancestors=tuple(sorted(versions.lineage(paths))),
        run_id=origin.run_id,
        iteration=origin.iteration,
        learning_rate=origin.numbers.get("learning_rate", 0.0),
        samples=int(origin.numbers.get("samples", 0.0)),
        update_steps=int(origin.numbers["total_steps"]),
        created_at=time.time(),
        files=digest_files(sorted(entry for entry in model.iterdir() if entry.is_file())),
    )
    folder = paths.version_dir(origin.version)
    link_tree(checkpoint, model / versions.TRAINER)
    versions.write_record(model, record)
    sync_tree(model)
    remove(folder)  # left by a crash between its rename and the switch
    model.rename(folder)
    sync(folder.parent)
    versions.switch(paths, folder)
    versions.prune(paths, keep, pinned=pinned)
