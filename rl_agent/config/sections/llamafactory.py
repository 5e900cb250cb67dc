"""The keys of `trainer=llamafactory`; most are LLaMA-Factory's own."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rl_agent.config.sections.base import (
    Above0,
    AtLeast2,
    Count,
    FreeForm,
    NotNegative,
    Positive,
    Seconds,
    Section,
    Share,
    absolute,
)
from rl_agent.paths import CONFIG_DIR

DrawUnit = Literal["group", "episode", "step"]
"""The unit that is drawn; `update.select` says what each does."""


def _file_or_name(name: str) -> str:
    """Return the absolute path of a file; a name of configs/deepspeed, or of no file, stays as typed."""
    path = absolute(Path(name))
    is_ours = (CONFIG_DIR / "deepspeed" / f"{name}.json").is_file()
    return str(path) if path.is_file() and not is_ours else name


class TrainerConfig(Section):
    kind: Literal["llamafactory"]
    recent_iterations: Positive
    reward_threshold: float
    positive_samples_to_train: Positive
    draw_by: DrawUnit
    recency_bias_power: NotNegative
    filter_unchanged_steps: bool
    val_split_ratio: Annotated[float, Field(gt=0, lt=1)]
    finetuning_type: Literal["full", "lora"]
    lora_rank: Positive
    lora_alpha: Positive
    lora_target: str
    cutoff_len: Positive
    image_max_pixels: Positive
    mask_history: bool
    per_device_train_batch_size: Positive
    gradient_accumulation_steps: Positive
    learning_rate: Above0
    max_grad_norm: NotNegative
    weight_decay: NotNegative
    num_train_epochs: Above0
    max_steps: Positive | None
    lr_scheduler_type: str
    warmup_steps: Count | None
    warmup_ratio: Share | None
    logging_steps: Positive
    do_eval: bool
    save_steps: Above0
    save_only_model: bool
    gradient_checkpointing: bool | None
    bf16: bool | None
    use_cpu: bool | None
    deepspeed: Annotated[str, AfterValidator(_file_or_name)] | None
    extra_args: FreeForm
    nproc_per_node: Positive | None
    timeout_s: Seconds
    peer_timeout_s: Seconds
    continue_optimizer: bool
    keep_versions: AtLeast2
