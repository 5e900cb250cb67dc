"""Whether this node sees the model that was published: the right version, every file as it was written.

A shared file system may show a link or a file late, so a node asks again until a deadline. A base model and
a model that a user put at `model.pt` have no record of their files: there is nothing to verify.
"""

import time
from collections.abc import Callable

from rl_agent.engine.model import published_version
from rl_agent.errors import ConfigError, StoreError
from rl_agent.paths import RunPaths
from rl_agent.update.digest import first_difference
from rl_agent.update.versions import RECORD, read_record, served_folder

_POLL_S = 0.5


def verify_served(
    paths: RunPaths,
    *,
    weight_version: int | None = None,
    timeout_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Return once the version that `model.pt` names is whole, and is `weight_version` if that is given.

    Raises StoreError that names the link or file that still differs at the deadline.
    """
    started = clock()
    while reason := difference(paths, weight_version):
        if clock() - started >= timeout_s:
            raise StoreError(f"{reason}; waited {timeout_s:.0f} s for the published model")
        sleep(_POLL_S)


def difference(paths: RunPaths, weight_version: int | None) -> str:
    """What is not as it was published; empty if nothing is, or if nothing was published."""
    found = published_version(paths)
    if weight_version is not None and found != weight_version:
        return f"{paths.model_link}: leads to weight version {found}, not {weight_version}"
    folder = served_folder(paths)
    if folder is None or folder == paths.version_dir(0):
        return ""
    try:
        record = read_record(folder)
    except ConfigError as error:
        return str(error)
    return f"{folder / RECORD}: not there" if record is None else first_difference(folder, record.files)
