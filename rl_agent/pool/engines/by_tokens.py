"""Decides which requests vLLM may be sent by tokens alone, where nobody needs text. Pure."""

from typing import Any

_MODELS_OWN = frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})
_SAME = _MODELS_OWN | {
    "seed",
    "ignore_eos",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "skip_special_tokens",
}


def is_same(params: dict[str, Any]) -> bool:
    """Tell whether `/inference/v1/generate` samples with these as `/v1/completions` would.

    What is left unstated that one never takes from the model's generation_config.json; it does not say
    which of `stop_token_ids` ended a response; and other parameters it takes as they are, unchecked, or
    does not know (vLLM 0.28, entrypoints/scale_out/token_in_token_out).
    """
    return params.keys() >= _MODELS_OWN and params.keys() <= _SAME
