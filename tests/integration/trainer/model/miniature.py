"""Makes a small copy of a model's configuration: all of its mechanisms, at a fraction of the size.

Widths, counts of heads and experts and the vocabulary shrink, and so do windows and context lengths, so that
a sequence of a few dozen tokens reaches beyond them. What the architecture does with its numbers (scales,
caps, kinds of layers, how angles are computed) stays as it is.
"""

import re
from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from rl_agent.trainer.grpo.model.rope import angles_of, length_of, short_context

VOCABULARY = 128
WINDOW = 8
CONTEXT = 32
"""Tokens beyond which angles that depend on the length of a sequence change."""
_MAX_LAYERS = 12
_HEADS, _HEAD_SIZE = 4, 16
_WIDTH = _HEADS * _HEAD_SIZE

_LAYERS = r"(\w+_)?num_hidden_layers|n_layers?|num_layers|num_blocks|(num_)?(en|de)coder_layers"
_ATTENTION_HEADS = r"(num_|n_|num_(en|de)coder_|(en|de)coder_)?(attention_)?heads?"
_KEY_HEADS = r"num_key_value_heads|num_kv_heads|num_query_groups"
_EXACT: tuple[tuple[str, int], ...] = (  # states of Mamba: 2 × width = heads × size, or its class refuses
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads", 2 * _HEADS),
    (r"mamba_d_head|mamba_head_?dim", _HEAD_SIZE),
    (r"mamba_d_ssm|attention_hidden_size", 2 * _WIDTH),
    (r"attention_head_dim", 2 * _HEAD_SIZE),
    (r"(mamba_)?n_?groups", 1),
)
_MOST: tuple[tuple[str, int], ...] = (
    (r"(.*_)?vocab_size(_per_layer_input)?", VOCABULARY),
    (r"(\w+_)?hidden_size|d_model|n_embd|emb_dim|embedding_dim|\w*embedding_size", _WIDTH),
    (r"word_embed_proj_dim|lru_width", _WIDTH),
    (r"\w*intermediate_size(_mlp)?|(\w+_)?ffn_dim|(\w+_)?ffn_hidden_size|dim_ff|dff|d_inner|n_inner", 96),
    (r"feed_forward_size", 96),
    (r"hidden_size_per_layer_input", 32),
    (r"qk_head_dim", 2 * _HEAD_SIZE),
    (r"(\w+_)?head_dim|kv_channels|dim_head|d_head|attention_head_size", _HEAD_SIZE),
    (r"rotary_dim", _HEAD_SIZE // 2),
    (r"(\w+_)?lora_rank|laurel_rank|adapter_rank|index_topk", 16),
    (r"(n_routed|num|num_local|moe_num)_experts|zero_expert_num", 4),
    (r"num_experts_per_tok|moe_topk|moe_top_k|moe_k", 2),
    (r"n_group|topk_group|first_k_dense_replace|num_dense_layers|index_n_heads", 1),
    (r"(keep_|attention_|sliding_)?window(_size)?|attention_chunk_size", WINDOW),
    (r"local_attention", 2 * WINDOW),
    (r"linear_num_(key|value)_heads", 2),
    (r"(mamba_)?d_state|(ssm_)?state_size|(mamba_)?chunk_size|block_size", 16),
    (r"mamba_dt_rank|time_step_rank", 4),
)
_NUMBERS_OF_LAYERS = r"attn_layer_indices|full_attn_idxs|hybrid_layer_ids|moe_layers"
_MAX_KINDS = 6
"""Most kinds of layers; a list with more different values has sizes, not kinds."""
_NOT_OF_A_MODEL = r"_.*|output_attentions|output_hidden_states|transformers_version"
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def miniature(config: PretrainedConfig) -> PretrainedConfig:
    """Make a small configuration of the same class. Raises what the class does if it does not accept it."""
    text = config.get_text_config()
    sizes = _Sizes(_layers_of(text), int(text.num_hidden_layers))
    return type(config).from_dict(sizes.shrunk(config.to_dict()))


def _layers_of(config: PretrainedConfig) -> list[int]:
    """Choose the layers to keep: the first ones, and of every kind that they lack the first."""
    total = int(config.num_hidden_layers)
    of_a_kind = {1}
    for name in {*vars(config), "layer_types", "layers_block_type"}:
        kinds = getattr(config, name, None)
        if re.fullmatch(_NUMBERS_OF_LAYERS, name) or not isinstance(kinds, list | tuple):
            continue
        first_of = {list(kinds).index(kind) for kind in kinds}
        if len(kinds) == total and len(first_of) <= _MAX_KINDS:
            of_a_kind |= first_of
    needed = 1 + max(of_a_kind)
    if getattr(config, "num_kv_shared_layers", 0):  # the last layers take keys from layers before
        needed *= 2
    first = range(min(needed, total, _MAX_LAYERS))
    late = sorted(of_a_kind - set(first))[: _MAX_LAYERS - 1]
    return [*first[: _MAX_LAYERS - len(late)], *(index for index in late if index < total)]


class _Sizes:
    def __init__(self, layers: list[int], total: int) -> None:
        self._kept = layers
        self._layers = len(layers)
        self._total = total

    def shrunk(self, config: Mapping[str, Any]) -> dict[str, Any]:
        sizes = {}
        for name, value in config.items():
            if re.fullmatch(_NOT_OF_A_MODEL, name):
                continue
            sizes[name] = 1 if name in _TOKENS else self._value(name, value, config)
        return _with_short_context(sizes)

    def _value(self, name: str, value: Any, config: Mapping[str, Any]) -> Any:
        if isinstance(value, dict) and name not in ("id2label", "label2id"):
            return self.shrunk(value)
        if isinstance(value, list | tuple):
            if re.fullmatch(_NUMBERS_OF_LAYERS, name):
                return [self._kept.index(layer) for layer in value if layer in self._kept]
            values = [value[layer] for layer in self._kept] if len(value) == self._total else value
            return [self._value(name, element, config) for element in values]
        if isinstance(value, int) and not isinstance(value, bool):
            return self._size(name, value, config)
        return value

    def _size(self, name: str, value: int, config: Mapping[str, Any]) -> int:
        if re.fullmatch(_LAYERS, name):
            return min(value, self._layers)
        if name == "num_kv_shared_layers":
            return min(value, self._layers // 2)
        if re.fullmatch(_ATTENTION_HEADS, name):
            return 2 * _HEADS if "expand" in config else _HEADS
        if re.fullmatch(_KEY_HEADS, name):
            heads = next((config[other] for other in config if re.fullmatch(_ATTENTION_HEADS, other)), value)
            return _HEADS if value == heads else min(value, 2)
        for pattern, size in _EXACT:
            if re.fullmatch(pattern, name):
                return size
        for pattern, size in _MOST:
            if re.fullmatch(pattern, name):
                return min(value, size)
        return value


def _with_short_context(config: dict[str, Any]) -> dict[str, Any]:
    """Let angles that depend on the length of a sequence change after `CONTEXT` tokens."""
    short = short_context(config)
    if short is None:
        return config
    shortened = config | {
        "max_position_embeddings": round(config["max_position_embeddings"] / short * CONTEXT)
    }
    if "original_max_position_embeddings" in shortened:
        shortened["original_max_position_embeddings"] = CONTEXT
    by_kind = {kind: _short_angles(dict(angles), config) for kind, angles in angles_of(config).items()}
    return shortened | {"rope_parameters": by_kind.get("", by_kind)}


def _short_angles(angles: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    share = angles.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    for name in {"short_factor", "long_factor"} & angles.keys():
        angles[name] = angles[name][: int(_HEAD_SIZE * share / 2)]
    if length_of(angles, config) is not None and "original_max_position_embeddings" in angles:
        angles["original_max_position_embeddings"] = CONTEXT
    return angles
