"""Writes small model folders without torch, for tests of publishing."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY = {"a": 0, "b": 1, "<|im_end|>": 2}


def write_model(folder: Path, *, value: float = 0.5, rows: int = 4, **extra: np.ndarray) -> Path:
    """A model of three tensors, all `value`, with a tokenizer of three tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        "model.embed_tokens.weight": np.full((rows, 8), value, np.float32),
        "model.norm.weight": np.full((8,), value, np.float32),
        "lm_head.weight": np.full((rows, 8), value, np.float32),
    }
    save_file(tensors | extra, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"vocab_size": rows, "tie_word_embeddings": False}))
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return folder


def write_checkpoint(training: Path, step: int, *, value: float = 0.25, **extra: np.ndarray) -> Path:
    """What LLaMA-Factory leaves of a training, without real optimizer state."""
    folder = write_model(training / f"checkpoint-{step}", value=value, **extra)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        (folder / name).write_bytes(b"state")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def value_of(folder: Path) -> float:
    """The value that every tensor of a `write_model` folder holds."""
    from safetensors.numpy import load_file

    values = {float(v) for tensor in load_file(folder / "model.safetensors").values() for v in tensor.flat}
    assert len(values) == 1, "a mixed model"
    return values.pop()
