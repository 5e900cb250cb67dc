"""A small Qwen3-VL or Qwen3.5, as vLLM and LLaMA-Factory load it: tokens, processor, configuration.

An image becomes one token for each 32 x 32 pixels. The chat template is LLaMA-Factory's `qwen3_vl_nothink`.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiny_tokenizer import END_OF_TEXT, TURN_END, save_tokenizer
from tokenizers import AddedToken, Tokenizer

if TYPE_CHECKING:
    from transformers import Qwen3_5Config, Qwen3VLConfig

VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
MEDIA = (VISION_START, VISION_END, IMAGE, VIDEO)
PATCH, MERGE = 16, 2
CLASSES = {"qwen3_vl": "Qwen3VL", "qwen3_5": "Qwen3_5"}
"""Beginnings of the names that a kind's classes have in transformers."""
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'text' -%}{{- part['text'] -}}"
    "{%- else -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def add_media(tokenizer: Tokenizer) -> Tokenizer:
    """Give a tokenizer the tokens that stand for images."""
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in MEDIA])
    return tokenizer


def save_processor(tokenizer: Tokenizer, folder: Path, *, max_length: int, max_pixels: int) -> None:
    """Write the files that transformers' AutoProcessor, vLLM and LLaMA-Factory read. Needs torchvision."""
    from transformers import AutoTokenizer, Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    save_tokenizer(tokenizer, folder, max_length=max_length)
    settings = {
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "size": {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": max_pixels},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    processor = Qwen3VLProcessor(
        Qwen2VLImageProcessor(**settings),
        AutoTokenizer.from_pretrained(folder),
        Qwen3VLVideoProcessor(**settings),
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"chat_template": CHAT_TEMPLATE}))


def vision_config(
    tokenizer: Tokenizer,
    *,
    text: dict[str, Any],
    vision: dict[str, Any],
    max_length: int,
    kind: str = "qwen3_vl",
) -> "Qwen3VLConfig | Qwen3_5Config":
    """Return the configuration of a model of which 32 numbers of each head are rotated."""
    import transformers

    config_class = getattr(transformers, f"{CLASSES[kind]}Config")
    config: Qwen3VLConfig | Qwen3_5Config = config_class(
        architectures=[f"{CLASSES[kind]}ForConditionalGeneration"],
        text_config={
            # vLLM 0.28 on a CPU looks here too
            "architectures": ["Qwen3_5ForCausalLM" if kind == "qwen3_5" else "Qwen3ForCausalLM"],
            "vocab_size": tokenizer.get_vocab_size(),
            "head_dim": 128 if kind == "qwen3_5" else 32,
            "max_position_embeddings": max_length,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "eos_token_id": tokenizer.token_to_id(TURN_END),
            "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
        }
        | text,
        vision_config={"out_hidden_size": text["hidden_size"], "patch_size": PATCH} | vision,
        image_token_id=tokenizer.token_to_id(IMAGE),
        video_token_id=tokenizer.token_to_id(VIDEO),
        vision_start_token_id=tokenizer.token_to_id(VISION_START),
        vision_end_token_id=tokenizer.token_to_id(VISION_END),
        tie_word_embeddings=False,
    )
    return config
