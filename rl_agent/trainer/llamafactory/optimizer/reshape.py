"""Converts DeepSpeed's shards of the optimizer so that any number of processes can load them.

DeepSpeed's own converter writes one file for each parameter (a "universal checkpoint"). DeepSpeed loads it if
its settings say so, and saves shards for its own number of processes again.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rl_agent.system.files import remove, write_whole

_SUFFIX = "_universal"


class ReshapeFailed(Exception):
    """The conversion failed for the reason in the message; the shards are unchanged."""


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
