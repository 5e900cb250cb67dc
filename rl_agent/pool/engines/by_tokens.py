"""Decides which requests vLLM may be sent by tokens alone, where nobody needs text. Pure."""

from typing import Any

from rl_agent.engine.packed import MODELS_OWN, PARAMETERS


def is_same(params: dict[str, Any], kind: str) -> bool:
    """Tell whether a route by tokens samples with these as `/v1/completions` would.

    What is left unstated such a route never takes from the model's generation_config.json, and other
    parameters vLLM's takes as they are, unchecked, or does not know (vLLM 0.28,
    entrypoints/scale_out/token_in_token_out); nor does it say which of `stop_token_ids` ended a response.
    """
    unsaid = {"stop_token_ids"} if kind == "vllm-tokens" else set()
    return params.keys() >= MODELS_OWN and params.keys() <= PARAMETERS - unsaid
