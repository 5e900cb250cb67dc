"""Checks what an engine answers for a sampled token: an id of the vocabulary, and its log-probability.

The vocabulary is as large as the model's embedding (`vocab_size` in its config.json). A tokenizer may know
fewer tokens, where the embedding is padded to a round number; a model can sample those rows all the same.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_agent.system.files import read_object

MAX_TOKEN_ID = 2**31
"""Above all vocabularies; what is stored and trained on has 32 bits."""
MINUS_INFINITY = -9999.0
"""The number that vLLM writes for it (entrypoints/openai): JSON has no word."""
ROUNDING = 0.01
"""The computed logarithm of a probability may exceed 0 by this much."""


def flaw_of(token_ids: Sequence[int], logprobs: Sequence[float], vocab_size: int | None) -> str:
    """Return what is wrong with sampled tokens and their logprobs, in words; empty if nothing is.

    What was sampled had a probability, so its logprob is not -inf, whatever top-p and the like cut off.
    """
    if len(token_ids) != len(logprobs):
        return f"{len(token_ids)} token ids with {len(logprobs)} logprobs"
    limit = vocab_size or MAX_TOKEN_ID
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= limit):
        wrong = next(token for token in token_ids if not 0 <= token < limit)
        shown = wrong if abs(wrong) < 2**64 else "of more than 64 bits"
        return f"a token id {shown}, where the vocabulary ends at {limit}"
    if not _are_logprobs(logprobs):
        wrong_value = next(value for value in logprobs if not _are_logprobs((value,)))
        return f"a logprob of {wrong_value:g} for a sampled token; finite and at most 0 would be right"
    return ""


def _are_logprobs(values: Sequence[float]) -> bool:
    # The sum of all is finite only if each is: one pass that costs less than asking every number.
    return not values or (
        math.isfinite(sum(values)) and max(values) <= ROUNDING and min(values) > MINUS_INFINITY
    )


def vocabulary_of(folder: Path) -> int | None:
    """Return how many tokens the model in a folder can sample; None where it does not say so."""
    config = read_object(folder / "config.json")
    text = config.get("text_config")
    return _count(config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None))


def usual_length_of(folder: Path) -> int | None:
    """Return the length of a response where nobody says it; None: as long as the context lasts."""
    return _count(read_object(folder / "generation_config.json").get("max_new_tokens"))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value <= MAX_TOKEN_ID else None
