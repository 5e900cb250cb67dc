"""A tiny random Qwen3-VL, the default model's kind, or Qwen3.5, with a real tokenizer and image processor.

An image becomes four tokens at most.

    python -m tests.integration.training.tiny_vision_model FOLDER [KIND]
"""

import sys
from pathlib import Path

from rl_agent.paths import PROJECT_ROOT

sys.path.insert(0, str(PROJECT_ROOT / "data"))

from tiny_tokenizer import TURN_END, train_tokenizer
from tiny_vision import MEDIA as MEDIA
from tiny_vision import VISION_START as VISION_START
from tiny_vision import add_media, save_processor, vision_config

MAX_LENGTH = 512
_MAX_PIXELS = 64 * 64
_RECURRENT = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "mamba_ssm_dtype": "float32",
}
"""Layers of Qwen3.5. Their heads have 128 numbers: vLLM's kernel for CPUs takes few other sizes."""


def make_tiny_vision_model(
    folder: Path, *, seed: int = 0, hidden_size: int = 128, kind: str = "qwen3_vl"
) -> Path:
    """Write a model folder that transformers, vLLM and LLaMA-Factory load; its weights are random."""
    import torch
    from transformers import AutoModelForImageTextToText

    folder.mkdir(parents=True)
    words = ("left", "down", "right", "up", "Reach the goal.", "Answer with one of: left, down, right, up.")
    tokenizer = add_media(train_tokenizer(words * 20))
    save_processor(tokenizer, folder, max_length=MAX_LENGTH, max_pixels=_MAX_PIXELS)
    text = {
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "num_position_embeddings": 64,
    }
    if kind == "qwen3_5":
        text |= _RECURRENT
    else:
        vision |= {"deepstack_visual_indexes": [0]}
    config = vision_config(tokenizer, text=text, vision=vision, max_length=MAX_LENGTH, kind=kind)
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    model.generation_config.eos_token_id = tokenizer.token_to_id(TURN_END)
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    folder, *kind = sys.argv[1:]
    print(make_tiny_vision_model(Path(folder), kind=kind[0] if kind else "qwen3_vl"))
