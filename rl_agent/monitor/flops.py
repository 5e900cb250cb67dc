"""Counts the floating-point operations of a model, and knows the peak rate of devices.

The operations are those of the model, not of an implementation: 2 per weight and token in the layers, 2 per
weight of the output matrix and response token, 2 L² × heads × head size per layer and sequence for causal
attention. A forward pass has them once, a backward pass twice, or once for frozen weights, which need no
gradient of their own. Padding, recomputed activations, adapters and the second pass over the logits are not
counted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FORWARD, BACKWARD = 1, 2
"""Passes, in units of 2 operations a weight and token."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_OTHER_LAYERS = (
    "kv_lora_rank", "mamba_d_state", "mamba_d_ssm", "ssm_state_size", "state_size", "hybrid_override_pattern",
    "attn_layer_indices", "layers_block_type", "block_types", "attn_type_list", "linear_num_value_heads",
)  # fmt: skip
"""Keys of models whose layers are not all attention over the whole context."""
_TWO_MATRICES = ("gpt_neox", "phi", "starcoder2", "nemotron", "persimmon", "arcee", "apertus", "nanochat")
"""Types of models whose MLP has no gate."""


@dataclass(frozen=True, slots=True)
class TowerShape:
    """The sizes of the part of a model that reads images, of Qwen's kinds."""

    hidden_size: int
    intermediate_size: int
    layers: int
    mlp_matrices: int
    mergers: int
    merged_patches: int
    """Patches that become one token."""
    out_size: int

    @classmethod
    def of(cls, vision: Mapping[str, Any], text_size: int) -> "TowerShape | None":
        """Read the keys of a `vision_config`; None if one is missing."""
        try:
            hidden = int(vision.get("embed_dim") or vision["hidden_size"])
            return cls(
                hidden,
                int(vision.get("intermediate_size") or hidden * vision["mlp_ratio"]),
                int(vision["depth"]),
                3 if str(vision.get("model_type")).startswith("qwen2_5") else 2,
                1 + len(vision.get("deepstack_visual_indexes") or ()),
                int(vision["spatial_merge_size"]) ** 2,
                int(vision.get("out_hidden_size") or text_size),
            )
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def layer_weights(self) -> int:
        """Number of weights in the matrices of all layers."""
        mlp = self.mlp_matrices * self.hidden_size * self.intermediate_size
        return self.layers * (4 * self.hidden_size**2 + mlp)

    @property
    def merger_weights(self) -> int:
        """Number of weights in what makes tokens of patches."""
        merged = self.merged_patches * self.hidden_size
        return self.mergers * merged * (merged + self.out_size)

    @property
    def weights(self) -> int:
        """Number of weights in all matrices."""
        return self.layer_weights + self.merger_weights

    def flops(self, patches: int) -> float:
        """Count a forward pass over one image, whose patches all see one another."""
        attention = 2 * patches * self.layers * self.hidden_size
        return 2.0 * patches * (self.layer_weights + self.merger_weights / self.merged_patches + attention)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of the matrices of a dense decoder."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    is_tied: bool = False
    """True if the output matrix is the embedding."""
    mlp_matrices: int = 3
    tower: TowerShape | None = None
    """None for a text model."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "ModelShape | None":
        """Read the keys of a `config.json`, of a model with several parts those of its text.

        None if one is missing or its layers are of another kind.
        """
        vision = config.get("vision_config")
        config = config.get("text_config") or config
        if any(config.get(name) for name in (*_EXPERTS, *_OTHER_LAYERS)) or _has_window(config):
            return None
        try:
            hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            return cls(
                hidden,
                int(config["intermediate_size"]),
                int(config["num_hidden_layers"]),
                heads,
                int(config.get("num_key_value_heads") or heads),
                int(config.get("head_dim") or hidden // heads),
                int(config["vocab_size"]),
                bool(config.get("tie_word_embeddings", False)),
                2 if config.get("model_type") in _TWO_MATRICES else 3,
                TowerShape.of(vision, hidden) if vision else None,
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None

    @property
    def layer_weights(self) -> int:
        """Number of weights in the matrices of all layers."""
        attention = self.hidden_size * (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return self.layers * (attention + self.mlp_matrices * self.hidden_size * self.intermediate_size)

    @property
    def weights(self) -> int:
        """Number of weights in all matrices."""
        embeddings = 1 if self.is_tied else 2
        return self.layer_weights + embeddings * self.vocab_size * self.hidden_size

    @property
    def kv_bytes(self) -> int:
        """Size of the keys and values of one token in 16 bits."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def dense_flops(self, length: int, scored: int) -> float:
        """Count a forward pass over one sequence without attention, with logits for `scored` tokens."""
        return 2.0 * (length * self.layer_weights + scored * self.vocab_size * self.hidden_size)

    def attention_flops(self, length: int) -> float:
        """Count the attention of a forward pass over one sequence."""
        return 2.0 * length**2 * self.layers * self.heads * self.head_dim


def _has_window(config: Mapping[str, Any]) -> bool:
    """Return whether some layers see less than the whole context."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        return any(kind != "full_attention" for kind in kinds)
    return bool(config.get("sliding_window")) and config.get("use_sliding_window") is not False


def training_flops(
    shape: ModelShape,
    sequences: Iterable[tuple[int, int]],
    *,
    passes: int = FORWARD + BACKWARD,
    is_frozen: bool = False,
) -> float:
    """Count the training of sequences (length, response tokens); frozen weights have a trained adapter."""
    dense_passes = passes - 1 if is_frozen else passes
    return sum(
        dense_passes * shape.dense_flops(length, scored) + passes * shape.attention_flops(length)
        for length, scored in sequences
    )


_PEAK_TFLOPS = (
    ("GB200", 2500.0),
    ("B200", 2250.0),
    ("GH200", 989.5),
    ("H200 NVL", 835.5),
    ("H200", 989.5),
    ("H100 NVL", 835.5),
    ("H100 PCIe", 756.0),
    ("H100", 989.5),
    ("H800", 989.5),
    ("H20", 148.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("L4", 121.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("A40", 149.7),
    ("RTX A6000", 154.8),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71.0),
    ("MI325X", 1307.4),
    ("MI300X", 1307.4),
    ("MI250X", 383.0),
)
"""Dense bf16 with fp32 accumulation, from the data sheets; the first name that fits counts."""


def peak_flops_per_s(device_name: str) -> float | None:
    """Return the peak rate of a GPU by the name that its driver reports; None if it is not known."""
    words = device_name.replace("-", " ").split()
    for name, tflops in _PEAK_TFLOPS:
        name_words = name.split()
        if any(words[at : at + len(name_words)] == name_words for at in range(len(words))):
            return tflops * 1e12
    return None
