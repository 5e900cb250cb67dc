"""A tiny random Qwen3-VL with a real tokenizer and image processor: the default model's kind, made offline.

An image becomes four tokens at most.

    python -m tests.integration.training.tiny_vision_model FOLDER
"""

import json
import sys
from pathlib import Path

from rl_agent.paths import PROJECT_ROOT

sys.path.insert(0, str(PROJECT_ROOT / "data"))

from tiny_tokenizer import save_tokenizer, train_tokenizer

VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
MEDIA = (VISION_START, VISION_END, IMAGE, VIDEO)
TEMPLATE = "qwen3_vl_nothink"
"""LLaMA-Factory's name of the conversation that `CHAT_TEMPLATE` renders."""
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'text' -%}{{- part['text'] -}}"
    "{%- else -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
MAX_LENGTH = 512
_MAX_PIXELS = 64 * 64


def make_tiny_vision_model(folder: Path, *, seed: int = 0, hidden_size: int = 128) -> Path:
    """Write a model folder that transformers, vLLM and LLaMA-Factory load; its weights are random."""
    import torch
    from tokenizers import AddedToken
    from transformers import Qwen3VLForConditionalGeneration

    folder.mkdir(parents=True)
    words = ("left", "down", "right", "up", "Reach the goal.", "Answer with one of: left, down, right, up.")
    tokenizer = train_tokenizer(words * 20)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in MEDIA])
    _save_processor(tokenizer, folder)
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(_config(tokenizer, hidden_size)).to(torch.float32)
    model.generation_config.eos_token_id = tokenizer.token_to_id("<|im_end|>")
    model.save_pretrained(folder)
    return folder


def _config(tokenizer, hidden_size: int):
    from transformers import Qwen3VLConfig

    text = {
        "architectures": ["Qwen3ForCausalLM"],  # vLLM 0.28 on a CPU looks here too
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": MAX_LENGTH,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": hidden_size,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=tokenizer.token_to_id(IMAGE),
        video_token_id=tokenizer.token_to_id(VIDEO),
        vision_start_token_id=tokenizer.token_to_id(VISION_START),
        vision_end_token_id=tokenizer.token_to_id(VISION_END),
        tie_word_embeddings=False,
    )


def _save_processor(tokenizer, folder: Path) -> None:
    from transformers import AutoTokenizer, Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    save_tokenizer(tokenizer, folder, max_length=MAX_LENGTH)
    size = {"shortest_edge": 32 * 32, "longest_edge": _MAX_PIXELS}
    patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "size": size}
    processor = Qwen3VLProcessor(
        Qwen2VLImageProcessor(**patches),
        AutoTokenizer.from_pretrained(folder),
        Qwen3VLVideoProcessor(**patches),
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": CHAT_TEMPLATE}))


if __name__ == "__main__":
    print(make_tiny_vision_model(Path(sys.argv[1])))
