"""Writes small model folders without torch, for tests of publishing."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.support.tiny_chat import CHATML, save_tiny_model_folder, tiny_tokenizer

TOKENS = tiny_tokenizer().get_vocab_size()
ROWS = TOKENS + 1


def write_model(folder: Path, *, value: float = 0.5, rows: int = ROWS, **extra: np.ndarray) -> Path:
    """A model of three tensors, all `value`, with the tokenizer of `tests.support.tiny_chat`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        "model.embed_tokens.weight": np.full((rows, 8), value, np.float32),
        "model.norm.weight": np.full((8,), value, np.float32),
        "lm_head.weight": np.full((rows, 8), value, np.float32),
    }
    save_file(tensors | extra, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"vocab_size": rows, "tie_word_embeddings": False}))
    save_tiny_model_folder(folder)
    (folder / "chat_template.jinja").write_text(CHATML)
    return folder


def write_checkpoint(training: Path, step: int, *, value: float = 0.25, **extra: np.ndarray) -> Path:
    """Write what LLaMA-Factory leaves of a training, without real optimizer state."""
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
