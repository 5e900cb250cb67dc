"""Defines the policy: a causal language model that answers with log-probabilities instead of logits."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)

from rl_agent.errors import ConfigError
from rl_agent.trainer.grpo.data.batch import PackedBatch
from rl_agent.trainer.grpo.data.images import PlacedImage, ReadsImages
from rl_agent.trainer.grpo.model import attention
from rl_agent.trainer.grpo.model.buffers import forget_lengths
from rl_agent.trainer.grpo.model.file_layout import FileLayout
from rl_agent.trainer.grpo.model.head import OutputHead, layers_of
from rl_agent.trainer.grpo.model.logprobs import chosen_logprobs
from rl_agent.trainer.grpo.model.trainable import VISION_TYPES, obstacle


class PolicyModel(nn.Module):
    """A causal language model whose `forward` scores the response tokens of a packed micro-batch.

    A model with packed attention computes all sequences in one pass, unless one of them has more tokens than
    `packs_up_to`; any other model computes one sequence after the other.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        chunk_tokens: int,
        packs_up_to: int | None = None,
        files: FileLayout | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.files = files or FileLayout()
        self.same_passes: Callable[[int], int] = lambda passes: passes
        """The passes that all ranks with the same weights make, given those that this one needs."""
        self._head = OutputHead(model)
        self._temperature = temperature
        self._chunk_tokens = chunk_tokens
        self.packs_up_to = packs_up_to
        """Tokens of the longest sequence among several at once; None: any."""
        self.reader: ReadsImages | None = None
        """Reads the images of a vision model; None for a text model."""
        self.shares_prefixes = False
        """Batches may have prefixes once that sequences have in common (`pack`); settled by `model_check`."""

    def forward(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Compute (logprobs, entropies) of the response tokens, in their order."""
        parts = [self._head.inputs(**inputs) for inputs in self._passes(batch)]
        hidden = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return chosen_logprobs(
            hidden[0, batch.positions],
            self._head.weight,
            batch.targets,
            temperature=self._temperature,
            chunk_tokens=self._chunk_tokens,
            bias=self._head.bias,
            transform=self._head.transform,
        )

    def _passes(self, batch: PackedBatch) -> Iterator[dict[str, Any]]:
        """Yield the inputs of each of the model's passes."""
        at_once = _packed(
            batch.input_ids,
            batch.position_ids,
            batch.boundaries,
            batch.max_length,
            key_boundaries=batch.key_boundaries,
            key_places=batch.key_places,
        )
        at_once |= _shown([image for images in batch.images for image in images])
        if self.is_packed and self.packs_up_to is None:
            yield at_once
            return
        if self.is_packed and self.packs_up_to is not None and batch.max_length <= self.packs_up_to:
            passes = [at_once]
        else:
            lengths = batch.boundaries.diff().tolist()
            parts = batch.input_ids.split(lengths, dim=1), batch.position_ids.split(lengths, dim=-1)
            passes = [self._alone(*part) for part in zip(*parts, batch.images, strict=True)]
        # The result of one token is looked at by nobody.
        one_token = self._alone(batch.input_ids[:, :1], batch.position_ids[..., :1], ())
        passes += [one_token] * (self.same_passes(len(passes)) - len(passes))
        for inputs in passes:
            forget_lengths(self.model)
            yield inputs

    def _alone(
        self, input_ids: Tensor, position_ids: Tensor, images: Sequence[PlacedImage]
    ) -> dict[str, Any]:
        """Make the inputs of one sequence, for an attention of either kind."""
        if self.is_packed:
            length = input_ids.shape[1]
            boundaries = torch.tensor([0, length], dtype=torch.int32, device=input_ids.device)
            return _packed(input_ids, position_ids, boundaries, length) | _shown(images)
        inputs: dict[str, Any] = {"input_ids": input_ids, "use_cache": False}
        if self.reader is not None:  # images move what comes after them
            inputs["position_ids"] = position_ids
        return inputs | _shown(images)

    @property
    def is_packed(self) -> bool:
        """Return whether its attention takes several sequences at once."""
        config: Any = self.model.config
        return bool(config._attn_implementation == attention.NAME)

    @property
    def image_token(self) -> int | None:
        """The token that stands for a piece of an image; None for a text model."""
        return None if self.reader is None else self.reader.image_token

    @property
    def image_cost(self) -> float:
        """The work of the tower for a token of an image, in tokens' work of the layers; 0 if it is frozen."""
        if self.reader is None:
            return 0.0
        layers = sum(parameter.numel() for layer in self.layers for parameter in layer.parameters())
        return self.reader.tower_work() / layers

    @property
    def config(self) -> dict[str, Any]:
        """The model's configuration."""
        config: PretrainedConfig = self.model.config  # type: ignore[assignment]
        return config.to_dict()

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding: token ids are below it, whatever the configuration says."""
        model: Any = self.model
        return int(model.get_input_embeddings().weight.shape[0])

    @property
    def layers(self) -> list[nn.Module]:
        return list(layers_of(self.model))


class Scorer(Protocol):
    """Anything that scores a batch as `PolicyModel.forward` does."""

    @property
    def shares_prefixes(self) -> bool:
        """Return whether a batch may have prefixes once that sequences have in common."""

    @property
    def reader(self) -> ReadsImages | None:
        """The reader of its images; None for a text model."""

    def __call__(self, batch: PackedBatch) -> tuple[Tensor, Tensor]: ...


def _packed(
    input_ids: Tensor,
    position_ids: Tensor,
    boundaries: Tensor,
    length: int,
    *,
    key_boundaries: Tensor | None = None,
    key_places: Tensor | None = None,
) -> dict[str, Any]:
    return {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "boundaries": boundaries,
        "key_boundaries": boundaries if key_boundaries is None else key_boundaries,
        "key_places": key_places,
        "max_length": length,
        "use_cache": False,
    }


def _shown(images: Sequence[PlacedImage]) -> dict[str, Any]:
    """Make the input by which a model asks the reader for the features of these images."""
    return {"pixel_values": images} if images else {}


def read_config(folder: Path) -> PretrainedConfig:
    """Read a model's configuration; of a model of several parts, that of its causal language model.

    Raises ConfigError for one that this trainer cannot train.
    """
    if problem := obstacle(json.loads((folder / "config.json").read_bytes())):
        raise ConfigError(f"the model at {folder} {problem}")
    config: PretrainedConfig = AutoConfig.from_pretrained(folder)
    model: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    is_part = model is not None and model.config_class is config.sub_configs.get("text_config")
    return config.get_text_config() if is_part and config.model_type not in VISION_TYPES else config


def build_model(
    config: PretrainedConfig,
    *,
    activation_checkpointing: float,
    implementation: str | None = attention.NAME,
    freeze_vision_tower: bool = True,
) -> PreTrainedModel:
    """Make the model on the current default device, in fp32, its weights as transformers initialises them.

    `implementation` is of attention; None: the one that transformers prefers. The first
    `activation_checkpointing` share of the layers keeps no activations and computes them again. Nothing drops
    out, whatever the configuration says of training: engines sample without it.
    """
    attention.register()
    is_vision = config.model_type in VISION_TYPES
    auto: Any = AutoModelForImageTextToText if is_vision else AutoModelForCausalLM
    chosen = {"": implementation, "text_config": implementation, "vision_config": "sdpa"}
    model: PreTrainedModel = auto.from_config(
        config, dtype=torch.float32, attn_implementation=chosen if is_vision else implementation
    )
    model.eval()
    if is_vision:
        model.model.visual.requires_grad_(not freeze_vision_tower)
    if activation_checkpointing > 0:
        _checkpoint_activations(model, activation_checkpointing)
    return model


def takes_another_attention(model: PreTrainedModel) -> bool:
    """Return whether the attention is chosen by name at each call; older code has its own written in."""
    before = model.config._attn_implementation
    attention.use(model, "eager")
    is_taken = bool(model.config._attn_implementation == "eager")
    attention.use(model, before)
    return is_taken


def _checkpoint_activations(model: Any, share: float) -> None:
    if not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"trainer.parallel.activation_checkpointing={share}: models of type {model.config.model_type} "
            "cannot compute activations again; 0 keeps them"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})
    tower = getattr(model.base_model, "visual", None)
    for layers in (layers_of(model), () if tower is None else tower.blocks):
        for index, layer in enumerate(layers):
            # Of the layer alone, which asks for it: its parts are not in training, and drop nothing.
            layer.training = layer.gradient_checkpointing = index < round(len(layers) * share)
            for name, value in vars(layer).items():
                if "drop" in name and isinstance(value, float):
                    setattr(layer, name, 0.0)
