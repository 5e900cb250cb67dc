"""A tiny random Qwen3-VL with a real tokenizer and image processor: the default model's kind, made offline.

An image becomes four tokens at most.

    python -m tests.integration.training.tiny_vision_model FOLDER
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


def make_tiny_vision_model(folder: Path, *, seed: int = 0, hidden_size: int = 128) -> Path:
    """Write a model folder that transformers, vLLM and LLaMA-Factory load; its weights are random."""
    import torch
    from transformers import Qwen3VLForConditionalGeneration

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
        "deepstack_visual_indexes": [0],
    }
    config = vision_config(tokenizer, text=text, vision=vision, max_length=MAX_LENGTH)
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(config).to(torch.float32)
    model.generation_config.eos_token_id = tokenizer.token_to_id(TURN_END)
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    print(make_tiny_vision_model(Path(sys.argv[1])))
