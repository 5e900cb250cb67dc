"""Checks a trained model before it is served. Checks raise PublishError and change nothing."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rl_agent.errors import PublishError
from rl_agent.served_model.weights import Tensor, first_not_finite, read_tensors

_TIED = "lm_head.weight"
"""May be left out of a file if the model ties it to the embeddings."""
_NOT_TRAINED = "mtp."
"""Prefix of the draft heads of some base models: transformers drops them, and no engine needs them."""


def check_model(trained: Path, current: Path | None) -> dict[str, Tensor]:
    """Check that a model is whole, finite, shaped as the current one, with an embedding for every token.

    `current` is None if the served model's files are not on this machine; then shapes are not compared.
    """
    config = _read_config(trained)
    tensors = read_tensors(trained)
    _check_vocabulary(trained, config, tensors)
    if current is not None:
        _check_shapes(trained, tensors, current, is_tied=bool(_setting(config, "tie_word_embeddings")))
    if (name := first_not_finite(tensors)) is not None:
        raise PublishError(f"{trained}: {name} holds NaN or infinity; lower trainer.learning_rate")
    return tensors


def _read_config(trained: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((trained / "config.json").read_bytes())
        return config
    except (OSError, ValueError) as error:
        raise PublishError(f"{trained}: config.json cannot be read: {error}") from error


def _setting(config: dict[str, Any], key: str) -> Any:
    """Read a setting of the language model, which vision models keep in the section `text_config`."""
    return config.get(key, config.get("text_config", {}).get(key))


def _check_vocabulary(trained: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    path = trained / "tokenizer.json"
    if not path.is_file():
        raise PublishError(f"{trained}: holds no tokenizer.json")
    tokens = Tokenizer.from_file(str(path)).get_vocab_size(with_added_tokens=True)
    embeddings = [tensor for name, tensor in tensors.items() if name.endswith("embed_tokens.weight")]
    rows = embeddings[0].shape[0] if embeddings else _setting(config, "vocab_size") or 0
    if rows < tokens:
        raise PublishError(f"{trained}: has {rows} embeddings for {tokens} tokens")


def _check_shapes(trained: Path, tensors: dict[str, Tensor], current: Path, *, is_tied: bool) -> None:
    if not any(current.glob("*.safetensors")):  # an older format: nothing to compare with
        return
    served = read_tensors(current)
    optional = {_TIED} if is_tied else set()
    odd = sorted(name for name in (tensors.keys() ^ served.keys()) - optional if not _is_dropped(name))
    if odd:
        where = "lacks" if odd[0] in served else "has the unknown"
        raise PublishError(f"{trained}: {where} tensor {odd[0]} ({len(odd)} differ from {current})")
    for name in tensors.keys() & served.keys():
        if tensors[name].shape != served[name].shape:
            raise PublishError(
                f"{trained}: {name} has shape {tensors[name].shape}, in {current} it is {served[name].shape}"
            )


def _is_dropped(name: str) -> bool:
    return name.startswith(_NOT_TRAINED)
