"""Files of a simulated cluster: tasks, a small model, and what a training would leave."""

import json
import shutil
from pathlib import Path

import numpy as np

from tests.support.tiny_chat import save_tiny_model_folder

ROWS = 300
"""Embeddings: more than the tokens of the byte-level tokenizer."""


def write_home(home: Path, tasks: int, answer: str) -> None:
    """`data` with as many training and test tasks, and `model`; nothing if they are there."""
    if (home / "model").exists():
        return
    (home / "data").mkdir()
    for split in ("train", "test"):
        lines = (
            {"task_id": f"{split}-{i}", "prompt": f"{i}=", "answer": answer, "env": "math"}
            for i in range(tasks)
        )
        text = "".join(json.dumps(line | {"difficulty": "easy"}) + "\n" for line in lines)
        (home / "data" / f"{split}.jsonl").write_text(text)
    save_tiny_model_folder(home / "model")
    _save_tensors(home / "model", 0.5)
    (home / "model" / "config.json").write_text(
        json.dumps({"vocab_size": ROWS, "tie_word_embeddings": False})
    )


def _save_tensors(folder: Path, value: float) -> None:
    from safetensors.numpy import save_file

    names = ("model.embed_tokens.weight", "lm_head.weight")
    save_file({name: np.full((ROWS, 8), value, np.float32) for name in names}, folder / "model.safetensors")


def write_checkpoint(model: Path, training: Path, *, step: int) -> None:
    """Write what LLaMA-Factory leaves, with other weights than `model`; `finished` is written last."""
    folder = training / f"checkpoint-{step}"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("trainer", "*.json.tmp"))
    _save_tensors(folder, float(step))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        (folder / name).write_bytes(b"state")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    (training / "finished").touch()
