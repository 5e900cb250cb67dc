"""The policy: a causal language model that answers with log-probabilities instead of logits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from rl_agent.errors import ConfigError
from rl_agent.trainer import attention
from rl_agent.trainer.batch import PackedBatch
from rl_agent.trainer.logprobs import chosen_logprobs


class Policy(nn.Module):
    """`forward` scores the response tokens of a packed micro-batch."""

    def __init__(self, model: nn.Module, *, temperature: float, chunk_tokens: int) -> None:
        super().__init__()
        self.model = model
        self._temperature = temperature
        self._chunk_tokens = chunk_tokens

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """(logprobs, entropies) of the response tokens, in their order."""
        model: Any = self.model
        hidden = model.base_model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            use_cache=False,
            boundaries=batch.boundaries,
            max_length=batch.max_length,
        ).last_hidden_state
        return chosen_logprobs(
            hidden[0, batch.positions],
            model.lm_head.weight,
            batch.targets,
            temperature=self._temperature,
            chunk_tokens=self._chunk_tokens,
        )

    @property
    def config(self) -> dict[str, Any]:
        """The model's configuration."""
        config: PretrainedConfig = self.model.config  # type: ignore[assignment]
        return config.to_dict()

    @property
    def layers(self) -> list[nn.Module]:
        model: Any = self.model
        return list(model.base_model.layers)


Scorer = Callable[[PackedBatch], tuple[Tensor, Tensor]]
"""Who answers as `Policy.forward` does."""


def read_config(folder: Path) -> PretrainedConfig:
    """The model's configuration. Raises ConfigError for a model that packing does not fit."""
    config = AutoConfig.from_pretrained(folder)
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise ConfigError(f"{folder}: has layers with sliding-window attention, which packing does not cover")
    return config


def build_model(config: PretrainedConfig, *, activation_checkpointing: float) -> nn.Module:
    """The model on the current default device, in fp32, its weights as transformers initialises them.

    The first `activation_checkpointing` share of its layers keeps no activations and computes them again.
    """
    attention.register()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention.NAME)
    model.train()
    if activation_checkpointing > 0:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        layers = model.base_model.layers
        for layer in layers[round(len(layers) * activation_checkpointing) :]:
            layer.gradient_checkpointing = False
    return model
