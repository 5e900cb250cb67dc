"""Checks by its `config.json` alone whether a model can be trained: asked when a run is planned.

A plan is made in a second, so neither torch nor transformers is imported: which architectures transformers
has is read from the text of its table. What a configuration cannot tell is seen when the model is loaded.
"""

import ast
import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_TABLE = Path("models", "auto", "modeling_auto.py")
_TABLE_NAME = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
_MULTIMODAL = "ForConditionalGeneration"
_FOR_SOMETHING = re.compile(r"For[A-Z]\w*$")
_GENERATES = ("ForCausalLM", _MULTIMODAL)
"""Kinds of model classes that can be trained; others have another output layer."""
VISION_TYPES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
"""Models that are trained with their images: `vision.py` knows how they place them."""
TEXT_MODEL = "take a text model, such as model_config.base_model=Qwen/Qwen3-8B, or trainer=llamafactory"


def obstacle(config: Mapping[str, Any]) -> str | None:
    """Name why a model cannot be trained, and what would be right; None if nothing speaks against it."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return "its config.json names no model_type, so transformers cannot load it; take a complete model"
    if method := quantization(config):
        return f"is quantized ({method}), and trainer=grpo trains bf16 or fp32; take it without quantization"
    if kind in VISION_TYPES:
        return None
    listed = config.get("architectures")
    named = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    own = _class_for(kind)
    if own is None and known_classes() is not None:
        return _obstacle_of_unknown(kind, named, config)
    if (own or "").endswith(_MULTIMODAL):
        return _not_text(own or "")
    if config.get("is_encoder_decoder"):
        return f"has an encoder ({kind}), and trainer=grpo trains decoders; {TEXT_MODEL}"
    if named and all(_FOR_SOMETHING.search(name) and not name.endswith(_GENERATES) for name in named):
        return f"generates no text ({named[0]}); {TEXT_MODEL}"
    if own is not None and (others := _of_other_kinds(named, own)):
        return (
            f"is {own} by its model_type ({kind}) and {others[0]} by its architectures, so that engines would"
            " serve another model than is trained; take one whose config.json names one"
        )
    return None


def _of_other_kinds(named: list[str], own: str) -> list[str]:
    """List architectures of transformers other than the model_type's; none where that is among them."""
    return [] if own in named else [name for name in named if name in (known_classes() or {}).values()]


def quantization(config: Mapping[str, Any]) -> str | None:
    """Return the method by which a model's files are quantized; None if they are not."""
    for section in (config, config.get("text_config")):
        settings = section.get("quantization_config") if isinstance(section, Mapping) else None
        if isinstance(settings, Mapping):
            return str(settings.get("quant_method") or "by a method it does not name")
    return None


@cache
def known_classes() -> Mapping[str, str] | None:
    """Read transformers' classes of causal language models by model_type; None if that is not possible."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    try:
        tree = ast.parse((Path(spec.origin).parent / _TABLE).read_text())
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == _TABLE_NAME:
                assert isinstance(node.value, ast.Call)
                return dict(ast.literal_eval(node.value.args[0]))
    except (OSError, SyntaxError, ValueError, AssertionError, IndexError):
        return None
    return None


def _class_for(kind: str) -> str | None:
    return (known_classes() or {}).get(kind)


def _not_text(name: str) -> str:
    return f"is a {name}, and trainer=grpo trains text models and {', '.join(VISION_TYPES)}; {TEXT_MODEL}"


def _obstacle_of_unknown(kind: str, named: list[str], config: Mapping[str, Any]) -> str:
    if "vision_config" in config or any(name.endswith(_MULTIMODAL) for name in named):
        return _not_text((named or [kind])[0])
    if config.get("auto_map"):
        return f"brings code of its own ({kind}), which trainer=grpo does not run; {TEXT_MODEL}"
    return (
        f"is of type {kind} ({', '.join(named) or 'no architecture named'}), which the installed transformers"
        f" has no causal language model for; {TEXT_MODEL}"
    )
