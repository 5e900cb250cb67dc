"""The words of single tokens, by the tokenizer of the model that sampled them, where it is still there."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
STEPS = (-0.1, -0.7, -2.0, -5.0)
"""Natural log-probabilities at which the colour of a token changes."""
MAX_TOKENS = 20_000
MAX_TOKENIZER_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """A token as it is shown: its words, how surprising it was, and what it says when one looks at it."""

    text: str
    level: int
    """0 for a token that was nearly certain, up to 4."""
    words: str


class TokenWords:
    """Reads token ids; without a tokenizer it shows the ids."""

    def __init__(self, tokenizer: Any | None) -> None:
        self._tokenizer = tokenizer

    def drawn(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> tuple[DrawnToken, ...]:
        """Return the tokens with their log-probabilities; the first `MAX_TOKENS` of a longer response."""
        texts = self._texts(token_ids[:MAX_TOKENS])
        return tuple(
            DrawnToken(
                text, sum(logprob < step for step in STEPS), f"token {token_id}, logprob {logprob:.3f}"
            )
            for text, token_id, logprob in zip(texts, token_ids, logprobs, strict=False)
        )

    def _texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return the text that each token adds; a character of several tokens stands with its last one."""
        if self._tokenizer is None:
            return [f"#{token_id} " for token_id in token_ids]
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        try:
            return [stream.step(self._tokenizer, token_id) or "" for token_id in token_ids]
        except Exception as error:  # ids that this tokenizer has not
            log.info("tokens are shown as numbers: %s", error)
            return [f"#{token_id} " for token_id in token_ids]


@lru_cache(maxsize=8)
def words_in(folders: tuple[Path, ...]) -> TokenWords:
    """Return the words by the first folder that has a tokenizer."""
    from tokenizers import Tokenizer

    for folder in folders:
        file = folder / "tokenizer.json"
        try:
            if 0 < file.stat().st_size <= MAX_TOKENIZER_BYTES:
                return TokenWords(Tokenizer.from_file(str(file)))
        except Exception as error:  # no file, or none that can be read
            log.debug("%s: %s", file, error)
    return TokenWords(None)
