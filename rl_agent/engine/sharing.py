"""Divides the GPUs: the engine and the training have all of them in turn, or each its own.

With each its own, or one of the two on the CPU, the engine may stay up while the model is trained.
"""

from collections.abc import Mapping, Sequence

from rl_agent.config.plan import Config, Plan
from rl_agent.config.sections.llamafactory import TrainerConfig
from rl_agent.engine.gpus import visible_indices
from rl_agent.errors import ConfigError

DEVICES = "CUDA_VISIBLE_DEVICES"


def trains_on_cpu(config: Config, num_gpus: int) -> bool:
    use_cpu = config.trainer.use_cpu if isinstance(config.trainer, TrainerConfig) else None
    return num_gpus == 0 if use_cpu is None else use_cpu


def stays_up(plan: Plan) -> bool:
    """Return whether the engine keeps running through an update and takes the new weights after it."""
    return plan.config.weights.is_inplace and not _share(plan.config, plan.hardware.num_gpus)


def check_sharing(config: Config, num_gpus: int) -> None:
    """Check that `weights=inplace` can work on this machine's GPUs. Raises ConfigError if not."""
    places = config.weights.engine_gpus
    if places is not None:
        shown = f"weights.engine_gpus={list(places)}"
        if not config.weights.is_inplace:
            raise ConfigError(f"{shown}: goes with weights=inplace; otherwise engine and training take turns")
        if not places or len(set(places)) < len(places) or max(places) >= num_gpus:
            raise ConfigError(f"{shown}: expected different places among {num_gpus} visible GPUs, from 0")
        if not trains_on_cpu(config, num_gpus) and len(places) == num_gpus:
            raise ConfigError(f"{shown}: leaves no GPU for the training")
    elif config.weights.is_inplace and _share(config, num_gpus):
        raise ConfigError(
            "weights=inplace: the engine and the training would share the GPUs; give the engine its own with"
            " weights.engine_gpus=[...], or use weights=restart"
        )


def _share(config: Config, num_gpus: int) -> bool:
    uses_both = config.engine.device == "gpu" and not trains_on_cpu(config, num_gpus)
    return uses_both and config.weights.engine_gpus is None


def engine_gpu_count(config: Config, num_gpus: int) -> int:
    places = config.weights.engine_gpus
    return num_gpus if places is None else len(places)


def training_gpu_count(config: Config, num_gpus: int) -> int:
    return len(_left_for_training(config, num_gpus))


def engine_devices(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that shows the engine its GPUs; empty where it sees all."""
    places = config.weights.engine_gpus
    return {} if places is None else _show(places, environ)


def training_devices(config: Config, num_gpus: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the same for the training."""
    if config.weights.engine_gpus is None:
        return {}
    return _show(_left_for_training(config, num_gpus), environ)


def _left_for_training(config: Config, num_gpus: int) -> list[int]:
    return [place for place in range(num_gpus) if place not in (config.weights.engine_gpus or ())]


def _show(places: Sequence[int], environ: Mapping[str, str]) -> dict[str, str]:
    visible = visible_indices(environ)
    return {DEVICES: ",".join(str(place) if visible is None else visible[place] for place in places)}
