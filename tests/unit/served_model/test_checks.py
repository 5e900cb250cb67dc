"""A trained model that cannot be served is refused, and the old one stays."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rl_agent.engine.model import resolve_model
from rl_agent.errors import PublishError
from rl_agent.served_model.checks import check_model
from rl_agent.served_model.weights import CHUNK_BYTES
from rl_agent.trainer.llamafactory.publish import publish
from tests.unit.safetensors_files import ROWS, TOKENS, write_model
from tests.unit.trainer.llamafactory.trainings import finish_training, kept, publish_iteration, served_value


def cut(size_bytes: int) -> Callable[[Path], None]:
    """Cut the file of weights to this size, or if it is negative, by so much."""

    def change(checkpoint: Path) -> None:
        path = checkpoint / "model.safetensors"
        os.truncate(path, size_bytes if size_bytes >= 0 else path.stat().st_size + size_bytes)

    return change


def drop(name: str) -> Callable[[Path], None]:
    return lambda checkpoint: (checkpoint / name).unlink()


def put(value: float) -> Callable[[Path], None]:
    def change(checkpoint: Path) -> None:
        from safetensors.numpy import load_file, save_file

        path = checkpoint / "model.safetensors"
        tensors = load_file(path)
        tensors["lm_head.weight"][3, 7] = value
        save_file(tensors, path)

    return change


DAMAGE = {
    "cut short": (cut(-1), "is cut short"),
    "cut header": (cut(20), "is (cut short|not a readable)"),
    "no weights": (drop("model.safetensors"), "left no finished checkpoint"),
    "no config": (drop("config.json"), r"config\.json cannot be read"),
    "no tokenizer": (drop("tokenizer.json"), r"holds no tokenizer\.json"),
    "nan": (put(float("nan")), r"lm_head\.weight holds NaN or infinity"),
    "infinity": (put(float("-inf")), r"lm_head\.weight holds NaN or infinity"),
    "another shape": (
        partial(write_model, rows=ROWS + 1),
        rf"has shape \({ROWS + 1}, 8\), in .* it is \({ROWS}, 8\)",
    ),
    "too few embeddings": (
        partial(write_model, rows=TOKENS - 1),
        f"has {TOKENS - 1} embeddings for {TOKENS} tokens",
    ),
    "an unknown tensor": (
        partial(write_model, extra=np.zeros(3, np.float32)),
        "has the unknown tensor extra",
    ),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_model_is_refused_and_the_old_one_stays(plan, damage, message):
    publish_iteration(plan, 1)
    damage(finish_training(plan, 2))

    with pytest.raises(PublishError, match=message):
        publish(plan, 2, os.environ, now=2.0)

    assert resolve_model(plan.config).weight_version == 1
    assert served_value(plan) == 0.125
    assert kept(plan) == ["version-000001"]


def test_a_fault_behind_the_first_chunk_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("rl_agent.served_model.weights.CHUNK_BYTES", 64)
    assert CHUNK_BYTES > 64
    checkpoint = write_model(tmp_path / "model")
    put(float("nan"))(checkpoint)
    with pytest.raises(PublishError, match="lm_head"):
        check_model(checkpoint, None)


def test_tied_embeddings_may_be_saved_or_not(tmp_path):
    from safetensors.numpy import load_file, save_file

    base, trained = write_model(tmp_path / "base"), write_model(tmp_path / "trained")
    tensors = load_file(trained / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, trained / "model.safetensors")
    with pytest.raises(PublishError, match=r"lacks tensor lm_head\.weight"):
        check_model(trained, base)
    (trained / "config.json").write_text(json.dumps({"vocab_size": 4, "tie_word_embeddings": True}))
    check_model(trained, base)


def test_a_model_in_several_files_needs_all_of_them(tmp_path):
    folder = write_model(tmp_path / "model")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(PublishError, match=r"model-2\.safetensors: is not a readable"):
        check_model(folder, None)
