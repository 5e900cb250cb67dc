"""Converts DeepSpeed's shards of the optimizer so that any number of processes can load them.

DeepSpeed's own converter writes one file for each parameter (a "universal checkpoint"). DeepSpeed loads it if
its settings say so, and saves shards for its own number of processes again.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rl_agent.system.files import remove, write_whole
from rl_agent.trainer.llamafactory.inputs import DEEPSPEED_FILE
from rl_agent.trainer.llamafactory.optimizer.checkpoints import OptimizerState
from rl_agent.trainer.llamafactory.optimizer.optimizer import StateRefused, needs_reshape
from rl_agent.trainer.llamafactory.render import TrainingSetup

_SUFFIX = "_universal"
_LOG = "reshape.log"
_log = logging.getLogger(__name__)


class ReshapeFailed(StateRefused):
    """The conversion failed for the reason in the message; the shards are unchanged."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"its shards cannot be converted: {reason}")


def reshape_if_needed(
    state: OptimizerState, setup: TrainingSetup, resume: Path, timeout_s: float
) -> Path | None:
    """Convert the shards in the folder `resume` if `state` was saved by another number of processes.

    Returns the DeepSpeed settings that load them, None where those of the configuration do. Raises
    ReshapeFailed.
    """
    if not needs_reshape(state, setup):
        return None
    assert setup.deepspeed is not None
    change = f"from {state.deepspeed_ranks} to {setup.world_size}"
    _log.info("the number of processes changed %s: converting the optimizer's shards", change)
    reshape(resume, resume.with_name(_LOG), timeout_s)
    return settings_for_reshaped(setup.deepspeed, resume.with_name(DEEPSPEED_FILE))


def reshape(folder: Path, log: Path, timeout_s: float) -> None:
    """Write the universal form of a checkpoint folder's shards beside them. Raises ReshapeFailed."""
    shards = folder / (folder / "latest").read_text().strip()
    output = shards.with_name(shards.name + _SUFFIX)
    remove(output)  # of a preparation that was cut off
    _check_disk(shards)
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    command += ["--input_folder", str(shards), "--output_folder", str(output)]
    with log.open("wb") as written:
        try:
            done = subprocess.run(
                command,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"},
                stdout=written,
                stderr=written,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            raise ReshapeFailed(f"it took more than {timeout_s:.0f} s; see {log}") from error
    if done.returncode != 0:
        raise ReshapeFailed(f"it ended with exit code {done.returncode}; see {log}")


def settings_for_reshaped(deepspeed: Path, target: Path) -> Path:
    """Write `deepspeed`'s settings to `target`, changed so that they load a universal checkpoint."""
    settings = json.loads(deepspeed.read_bytes())
    settings["checkpoint"] = settings.get("checkpoint", {}) | {"load_universal": True}
    write_whole(target, json.dumps(settings, indent=2) + "\n")
    return target


def _check_disk(shards: Path) -> None:
    needed = 2 * sum(path.stat().st_size for path in shards.iterdir())  # pieces, and what is made of them
    free = shutil.disk_usage(shards).free
    if free < needed:
        raise ReshapeFailed(f"it needs {needed / 2**30:.1f} GiB of disk, {free / 2**30:.1f} GiB are free")
