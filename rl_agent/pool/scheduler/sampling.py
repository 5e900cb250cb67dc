"""Validation of sampling parameters. Pure.

The pool checks those that it reads itself (`migration`), and refuses those that would change what an engine
sends back. All others go to the engine as they are, if they are JSON of a sensible size: it judges them.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
MAX_TOKENS = 2**24
MAX_NAMES = 64
MAX_DEPTH = 32
MAX_VALUES = 20_000
"""The most values in all other parameters together: a JSON schema to follow is the largest of them."""
OF_THE_POOL = frozenset(
    {"model", "prompt", "prompt_token_ids", "prompt_embeds", "input_ids", "n", "echo", "use_beam_search"}
    | {"stream", "stream_options", "stream_interval", "request_id", "rid", "return_token_ids"}
    | {"max_tokens", "max_completion_tokens", "max_new_tokens", "truncate_prompt_tokens", "truncation_side"}
    | {"logprobs", "prompt_logprobs", "top_logprobs", "return_logprob", "flat_logprobs"}
    | {"detokenize", "output_kind", "repetition_detection", "kv_transfer_params", "ec_transfer_params"}
)
"""The pool gives these to engines by itself, or cannot hand on what they bring, or it moves responses."""

_Word = Annotated[str, Field(min_length=1, max_length=1000)]
_Tokens = Annotated[list[TokenId], Field(max_length=4096)]


class SamplingParams(BaseModel):
    """The parameters that the pool reads; what is sent to engines is what was given."""

    model_config = ConfigDict(strict=True, extra="allow")
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: _Word | Annotated[list[_Word], Field(max_length=MAX_NAMES)] | None = None
    stop_token_ids: _Tokens | None = None
    eos_token_ids: _Tokens | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    skip_special_tokens: bool | None = None


def check_sampling(params: Mapping[str, Any]) -> None:
    """Check sampling parameters. Raises ValueError that names the first one that cannot be used and why."""
    if len(params) > MAX_NAMES:
        raise ValueError(f"{len(params)} parameters; at most {MAX_NAMES} are taken")
    if taken := sorted(OF_THE_POOL & params.keys()):
        raise ValueError(f"{taken[0]}: the pool decides this, or does not do it; leave it out")
    try:
        others = SamplingParams.model_validate(params).model_extra or {}
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{first['loc'][0]}: {first['msg']}") from None
    for name in ("response_format", "structured_outputs"):  # vLLM fails (500) instead of refusing them
        if params.get(name) is not None and not isinstance(params[name], Mapping):
            raise ValueError(f"{name}: expected an object")
    _check_size(others)


def _check_size(others: Mapping[str, Any]) -> None:
    """Check that other parameters are not too deep or too large to be parsed again and again."""
    seen = 0
    layer: list[tuple[str, Any]] = list(others.items())
    for _ in range(MAX_DEPTH):
        seen += len(layer)
        if seen > MAX_VALUES:
            raise ValueError(f"{layer[-1][0]}: more than {MAX_VALUES} values")
        inner: list[tuple[str, Any]] = []
        for name, value in layer:
            if isinstance(value, Mapping):
                inner += [(name, item) for item in value.values()]
            elif isinstance(value, list):
                inner += [(name, item) for item in value]
        if not inner:
            return
        layer = inner
    raise ValueError(f"{layer[0][0]}: nested more than {MAX_DEPTH} deep")
