"""Chooses LLaMA-Factory's template of a model.

Samples are finished tokens, so that it renders no text: it reads the images, and looks after special tokens.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl_agent.config.overrides.keys import did_you_mean
from rl_agent.config.plan import ModelConfig
from rl_agent.errors import ConfigError

_KEY = "model_config.template"
_OF_TEXT = "empty"
OF_IMAGES = {
    "gemma3": "gemma3",
    "glm4v": "glm4v",
    "glm4v_moe": "glm4_5v",
    "internvl": "intern_vl",
    "kimi_vl": "kimi_vl",
    "llama4": "llama4",
    "llava": "llava",
    "mistral3": "mistral_small",
    "mllama": "mllama",
    "paligemma": "paligemma",
    "qwen2_5_vl": "qwen2_vl",
    "qwen2_vl": "qwen2_vl",
    "qwen3_5": "qwen3_5_nothink",
    "qwen3_5_moe": "qwen3_5_nothink",
    "qwen3_vl": "qwen3_vl_nothink",
    "qwen3_vl_moe": "qwen3_vl_nothink",
}
"""The template that reads images as a model's own processor, by `model_type`."""


def choose_template(config: ModelConfig, model: Mapping[str, Any]) -> str | None:
    """Return the template that is set, else that of a model's config.json; None where nothing is known.

    Raises ConfigError for a template that LLaMA-Factory lacks, and for a model whose template must be set.
    """
    if config.template is not None:
        known = registered()
        if known and config.template not in known:
            instead = did_you_mean(config.template, sorted(known)) or "; leave it out to take the model's"
            raise ConfigError(
                f"{_KEY}={config.template}: LLaMA-Factory has no template of that name{instead}"
            )
        return config.template
    kind = model.get("model_type")
    if kind is None:
        return None
    if "vision_config" in model and kind not in OF_IMAGES:
        raise ConfigError(
            f"{_KEY}: set the template by which LLaMA-Factory reads the images of {config.base_model} (type"
            f" {kind}), as one of {', '.join(sorted(set(OF_IMAGES.values())))}; {_OF_TEXT} for text alone"
        )
    return OF_IMAGES.get(kind, _OF_TEXT)


@cache
def registered() -> frozenset[str]:
    """Return the names of LLaMA-Factory's templates, of its source: to import it takes five seconds."""
    spec = find_spec("llamafactory")
    if spec is None or spec.origin is None:
        return frozenset()
    source = Path(spec.origin).with_name("data").joinpath("template.py").read_text(encoding="utf-8")
    return frozenset(re.findall(r'register_template\(\s*name="([^"]+)"', source))
