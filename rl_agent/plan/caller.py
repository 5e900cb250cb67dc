"""What the caller named relative to the folder they stand in, named absolutely.

Every later process of a run works in the run's own folder, so that what a library drops there belongs to
the run: a relative name would mean something else to it.
"""

import os
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

from rl_agent.config import Config, TrainerConfig
from rl_agent.grpo_config import GrpoConfig
from rl_agent.paths import CONFIG_DIR
from rl_agent.weights_config import WeightsConfig

_OWN_PACKAGE = "rl_agent"


def from_folder(config: Config, folder: Path) -> Config:
    """The configuration as it was meant in `folder`, for use in any other."""
    engine, env = config.engine, config.env_config
    return config.model_copy(
        update={
            "trainer": _trainer(config, folder),
            "weights": _weights(config.weights, folder),
            "engine": engine.model_copy(
                update={"allowed_local_media_path": str(_absolute(engine.allowed_local_media_path, folder))}
            ),
            "env_config": env.model_copy(
                update={"module_folders": _module_folders(env.kinds.values(), env.module_folders, folder)}
            ),
        }
    )


def _absolute(path: str | Path, folder: Path) -> Path:
    # resolve() would follow links, which differ between nodes.
    return Path(os.path.abspath(folder / Path(path).expanduser()))  # noqa: PTH100


def _trainer(config: Config, folder: Path) -> TrainerConfig | GrpoConfig:
    trainer = config.trainer
    if isinstance(trainer, TrainerConfig):
        return trainer.model_copy(update={"deepspeed": _deepspeed(trainer.deepspeed, folder)})
    return trainer


def _weights(weights: WeightsConfig, folder: Path) -> WeightsConfig:
    store = weights.store
    return weights if store is None else weights.model_copy(update={"store": _absolute(store, folder)})


def _deepspeed(name: str | None, folder: Path) -> str | None:
    """A file of configs/deepspeed goes by its name; what is no file stays as typed, for the message."""
    if name is None or (CONFIG_DIR / "deepspeed" / f"{name}.json").is_file():
        return name
    path = _absolute(name, folder)
    return str(path) if path.is_file() else name


def _module_folders(kinds: Iterable[str], named: Iterable[Path], folder: Path) -> tuple[Path, ...]:
    """The named folders, and the caller's if a module of `kinds` lies in it."""
    packages = {dotted.partition(":")[0].partition(".")[0] for dotted in kinds} - {_OWN_PACKAGE, ""}
    is_in_folder = any(PathFinder.find_spec(package, [str(folder)]) for package in packages)
    found = [_absolute(path, folder) for path in named]
    return tuple(dict.fromkeys([*found, folder] if is_in_folder else found))
