"""Refuses a training that cannot fit its GPUs, and says what was chosen to make it fit."""

from rl_agent.config.plan import Command, Config
from rl_agent.config.sections.grpo import GrpoConfig
from rl_agent.config.sections.llamafactory import TrainerConfig
from rl_agent.engine.sharing import training_gpu_count, trains_on_cpu
from rl_agent.errors import ConfigError
from rl_agent.monitor.flops import ModelShape
from rl_agent.plan.hub import FoundModel
from rl_agent.trainer.gpu_memory import GIB, choose, recomputes, update_gib, usable_gib


def check_gpu_memory(
    config: Config, command: Command, model: FoundModel, *, num_gpus: int, device_gib: float
) -> tuple[str, ...]:
    """Refuse what needs more than a device has; returns what was chosen. `device_gib` 0: nobody knows."""
    shape = None if model.config is None else ModelShape.of(model.config)
    trains = command.rl_phase != "rollout" and not command.join
    if not device_gib or not trains or trains_on_cpu(config, num_gpus):
        return ()
    if shape is None:
        if config.is_streaming and config.engine.device != "cpu":
            _check_least(config, command, model, num_gpus, device_gib)
        return ()
    if isinstance(config.trainer, TrainerConfig):
        return _check_update(config, command, shape, num_gpus, device_gib)
    if config.engine.device == "cpu":
        return ()
    ranks = (config.grpo.nproc_per_node or num_gpus) * command.num_nodes
    engine_share = config.engine.gpu_memory_utilization
    step = choose(shape, config.grpo, ranks, device_gib=device_gib, engine_share=engine_share)
    usable = usable_gib(device_gib, config.grpo, engine_share=engine_share)
    if step.needed_gib > usable:
        is_shared = config.grpo.placement == "shared"
        other_share = f"engine.gpu_memory_utilization below {engine_share:g}, " if is_shared else ""
        raise ConfigError(
            f"model_config.base_model={config.model.base_model}: a step of trainer=grpo needs about"
            f" {step.needed_gib:.0f} GiB on each of {ranks} GPUs, and {max(usable, 0):.0f} GiB can be used;"
            f" take {other_share}more GPUs, trainer.lora.rank=16, a smaller"
            f" {_cut_by(config.grpo)}{_without_copy(config)}, or a smaller model"
        )
    return (
        f"trainer.parallel.activation_checkpointing={step.activation_checkpointing:g}"
        f" offload_optimizer={str(step.offload_optimizer).lower()}: a step takes about"
        f" {step.needed_gib:.0f} of {device_gib:.0f} GiB on each of {ranks} GPUs",
    )


def _check_least(
    config: Config, command: Command, model: FoundModel, num_gpus: int, device_gib: float
) -> None:
    """Refuse a model of which weights and gradients alone do not fit, where no more is known of it.

    Of a mixture of experts, all weights are trained and lie on the devices, whichever are used.
    """
    trainer, settings = config.grpo, model.config or {}
    shards = trainer.parallel.shard_size or (trainer.nproc_per_node or num_gpus) * command.num_nodes
    file_bytes = 4 if "float32" in (settings.get("dtype"), settings.get("torch_dtype")) else 2
    needed = (8 if trainer.lora.rank is None else 2) * model.size_bytes / file_bytes / shards / GIB
    usable = usable_gib(device_gib, trainer, engine_share=config.engine.gpu_memory_utilization)
    if needed > usable:
        raise ConfigError(
            f"model_config.base_model={config.model.base_model}: its weights and their gradients alone need"
            f" {needed:.0f} GiB on each GPU where {shards} share them, and {max(usable, 0):.0f} GiB can be"
            " used; take more GPUs, trainer.lora.rank=16 or a smaller model"
        )


def _cut_by(trainer: GrpoConfig) -> str:
    """Name the setting that bounds a micro-batch: a response is not divided."""
    is_divided = trainer.loss.longest_response <= trainer.batch.token_budget
    return "trainer.batch.token_budget" if is_divided else "policy_config.max_new_tokens"


def _without_copy(config: Config) -> str:
    """Name the setting that keeps no copy of the iteration's first weights, where one is kept."""
    keeps = config.grpo.loss.proximal == "iteration" and config.grpo.mini_batches > 1
    return ", trainer.mini_batches=1" if keeps and config.grpo.lora.rank is None else ""


def _check_update(
    config: Config, command: Command, shape: ModelShape, num_gpus: int, device_gib: float
) -> tuple[str, ...]:
    trainer = config.llamafactory
    is_known = trainer.deepspeed is None or trainer.deepspeed in ("zero1", "zero2", "zero3")
    if not is_known or trainer.extra_args:  # they may offload, quantize or shard in other ways
        return ()
    ranks = (trainer.nproc_per_node or training_gpu_count(config, num_gpus)) * command.num_nodes
    does = recomputes(shape, trainer, ranks, device_gib=device_gib)
    needed = update_gib(shape, trainer, ranks, stage=trainer.deepspeed, recomputes=does)
    if needed > (usable := usable_gib(device_gib)):
        instead = "trainer.deepspeed=zero3 with more GPUs, trainer.finetuning_type=lora, a smaller"
        instead = instead if does else f"trainer.gradient_checkpointing=true, {instead}"
        raise ConfigError(
            f"model_config.base_model={config.model.base_model}: a sample of"
            f" trainer.cutoff_len={trainer.cutoff_len} needs at least {needed:.0f} GiB on each of {ranks}"
            f" GPUs, and {usable:.0f} GiB can be used; set {instead} trainer.cutoff_len or model"
        )
    if does and trainer.gradient_checkpointing is None:
        return (f"trainer.gradient_checkpointing=true, for a sample of {trainer.cutoff_len} tokens to fit",)
    return ()
