"""The words of single tokens, by the tokenizer of the model that sampled them, where it is still there."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, repeat
from pathlib import Path
from typing import Any

from rl_agent.types import Generation

log = logging.getLogger(__name__)
STEPS = (-0.1, -0.7, -2.0, -5.0)
"""Natural log-probabilities at which the colour of a token changes."""
TOKENS_A_TURN = 1000
"""Tokens of a response that one look draws; a link shows the next ones."""
READ_BEFORE = 16
"""Tokens read ahead of a stretch, so that a character or a word that begins before it is read whole."""
MAX_TOKENIZER_BYTES = 256 * 2**20


COLOURINGS = ("logprob", "version", "engine")
"""The colour of a token may show one of these."""
COLOURS = 6
"""Versions and engines take these colours in turn; a seventh gets the first one's again."""


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """A token as it is shown: its text, the class of its colour, and what it says when one looks at it."""

    text: str
    colour: str
    words: str


class Palette:
    """Gives each version, or each engine, its colour, in the order in which they come."""

    def __init__(self, colouring: str, engines: Mapping[str, str]) -> None:
        """`engines` has the names of engines by the first eight characters of their ids."""
        self.colouring = colouring
        self._engines = engines
        self._found: dict[str, str] = {}

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The colours and what they mean, of versions or engines that were seen."""
        return [(colour, label) for label, colour in self._found.items()]

    def colour(self, logprob: float, version: str, engine: str) -> str:
        """Return the class of a token's colour."""
        if self.colouring == "logprob":
            return f"lp{sum(logprob < step for step in STEPS)}"
        label = f"version {version}" if self.colouring == "version" else self.name_of(engine)
        return self._found.setdefault(label, f"made{len(self._found) % COLOURS}")

    def name_of(self, engine: str) -> str:
        """Return how an engine is called; the store knows only its id."""
        if not engine:
            return "an engine that was not recorded"
        name = self._engines.get(engine[:8])
        return f"{name} ({engine[:8]})" if name else f"engine {engine[:8]}"


def makers_of(generation: Generation) -> Iterator[tuple[str, str]]:
    """Yield the version and the engine of each token, without end; empty where it was not recorded."""
    for span in generation.spans:
        yield from repeat(
            (str(span.weight_version), span.engine), max(0, min(span.tokens, len(generation.token_ids)))
        )
    lowest, highest = generation.weight_version_min, generation.weight_version_max
    yield from repeat((str(lowest) if lowest == highest else f"{lowest} to {highest}", ""))


class TokenWords:
    """Reads token ids; without a tokenizer it shows the ids."""

    def __init__(self, tokenizer: Any | None, image_token: int | None = None) -> None:
        """`image_token` stands for a piece of an image; None for a text model."""
        self._tokenizer = tokenizer
        self.image_token = image_token

    def drawn(self, generation: Generation, palette: Palette, begin: int = 0) -> tuple[DrawnToken, ...]:
        """Return `TOKENS_A_TURN` tokens in their colours, from `begin` on."""
        end, ahead = begin + TOKENS_A_TURN, min(begin, READ_BEFORE)
        token_ids = generation.token_ids[begin:end]
        texts = self.texts(generation.token_ids[begin - ahead : end])[ahead:]
        makers = islice(makers_of(generation), begin, None)
        tokens = zip(texts, token_ids, generation.logprobs[begin:end], makers, strict=False)
        return tuple(
            DrawnToken(
                text,
                palette.colour(logprob, version, engine),
                f"token {token_id}, logprob {logprob:.3f}, version {version}"
                + (f", {palette.name_of(engine)}" if engine else ""),
            )
            for text, token_id, logprob, (version, engine) in tokens
        )

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the last `TOKENS_A_TURN` tokens in one text, without the pieces of images."""
        return "".join(self.texts([one for one in token_ids if one != self.image_token][-TOKENS_A_TURN:]))

    def texts(self, token_ids: Sequence[int]) -> list[str]:
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
    from rl_agent.chat.context.image_tokens import ImageTokens
    from rl_agent.chat.tokenizer_files import load_tokenizer

    for folder in folders:
        file = folder / "tokenizer.json"
        try:
            if 0 < file.stat().st_size <= MAX_TOKENIZER_BYTES:
                return TokenWords(load_tokenizer(folder), ImageTokens.load(folder).image_token)
        except Exception as error:  # no file, or none that can be read
            log.debug("%s: %s", file, error)
    return TokenWords(None)
