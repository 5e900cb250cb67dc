"""Write a model folder of Qwen3-VL-8B's shape without weights, for `vllm serve FOLDER --load-format dummy`.

    python benchmarks/rollout/vision_shape.py FOLDER

It measures speed, never learning. The vocabulary is that of the tiny tokenizer, and none of its tokens ends a
response: each is as long as the request lets it be.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.integration.training.tiny_vision_model import make_tiny_vision_model

TEXT = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5_000_000.0,
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
}
VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "out_hidden_size": 4096,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}
MAX_PIXELS = 4096 * 4096
NEVER = "<|never|>"


def main() -> None:
    folder = make_tiny_vision_model(Path(sys.argv[1]))
    (folder / "model.safetensors").unlink()
    config = read(folder / "config.json")
    never = config["text_config"]["vocab_size"]
    config["text_config"] |= TEXT | {"eos_token_id": never, "dtype": "bfloat16"}
    config["vision_config"] |= VISION | {"dtype": "bfloat16"}
    write(folder / "config.json", config | {"dtype": "bfloat16"})
    write(folder / "generation_config.json", {"eos_token_id": never})
    tokenizer = read(folder / "tokenizer.json")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({"id": never, "content": NEVER, "special": True, **flags})
    write(folder / "tokenizer.json", tokenizer)
    settings = read(folder / "tokenizer_config.json")
    write(
        folder / "tokenizer_config.json",
        settings | {"eos_token": NEVER, "model_max_length": TEXT["max_position_embeddings"]},
    )
    for name in ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"):
        if (folder / name).exists():
            write(folder / name, enlarged(read(folder / name)))
    print(folder)


def enlarged(content: object) -> object:
    """Raise every limit on an image's pixels."""
    if isinstance(content, dict):
        return {
            name: MAX_PIXELS if name in ("longest_edge", "max_pixels") else enlarged(value)
            for name, value in content.items()
        }
    return content


def read(path: Path) -> dict:
    return json.loads(path.read_bytes())


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    from rl_agent.terminal import run_script

    run_script(main)
