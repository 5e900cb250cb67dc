"""Checks that the run's trainer and engines can take the base model, as far as a plan can know."""

from rl_agent.config import Command, Config
from rl_agent.errors import ConfigError
from rl_agent.plan.hub import FoundModel


def check_model(config: Config, command: Command, model: FoundModel) -> tuple[str, ...]:
    """Refuse a base model that cannot be trained or served; returns what cannot be known yet."""
    from rl_agent.trainer.model.trainable import obstacle, quantization

    name = config.model.base_model
    trains = config.is_streaming and command.rl_phase == "both" and not command.join
    if not trains and not config.weights.is_inplace:
        return ()
    who = "trainer=grpo" if trains else "weights=inplace"
    if model.config is None:
        unknown = f"model_config.base_model={name}: nothing is known of it yet"
        return (f"{unknown}; whether {who} can take it is seen after the download",)
    if trains:
        problem = obstacle(model.config)
        if problem is None and model.files and not any(name.endswith(".safetensors") for name in model.files):
            problem = "has its weights as *.bin, and trainer=grpo reads safetensors; save it in that format"
    elif method := quantization(model.config):
        problem = (
            f"is quantized ({method}), and vLLM may load weights wrongly into a quantized engine that runs;"
            " take it without quantization, or weights=restart"
        )
    else:
        problem = None
    if problem is not None:
        raise ConfigError(f"model_config.base_model={name}: {problem}")
    return ()
