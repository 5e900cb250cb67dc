"""Draws an episode as the GRPO trainer sees it: its sequences, which tokens carry loss, its advantage.

The trainer's own code makes the sequences (`trainer.grpo.data`) and the advantages (`trainer.grpo.step`), of
what the run recorded. Not known here: a KL term in the reward, and what is refused for its age.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rl_agent.config.sections.grpo import LossSettings
from rl_agent.page.episode import address_of
from rl_agent.page.tokens import READ_BEFORE, DrawnToken, TokenWords
from rl_agent.rollout.comparison import Comparison
from rl_agent.types import EpisodeKey, Trajectory

if TYPE_CHECKING:
    from rl_agent.trainer.grpo.data.samples import Group, Segment

TOKENS_A_SEQUENCE = 4000
"""Tokens of a sequence that one look draws, those of images not counted; a link shows the next ones."""
SEQUENCES_A_PAGE = 20
SIZES = (0.5, 1.5)
"""Advantages at whose size the colour changes."""


@dataclass(frozen=True, slots=True)
class DrawnImage:
    """An image at the place of its tokens."""

    address: str | None
    """Its path below the run's images; None: it is not there any more."""
    tokens: int
    """0: it is not known where they are."""


@dataclass(frozen=True, slots=True)
class DrawnSequence:
    """A sequence that the model computes, or a stretch of it."""

    number: int
    pieces: tuple[DrawnToken | DrawnImage, ...]
    """A run of context is one piece, and so is each token of a response."""
    tokens: int
    response_tokens: int
    begin: int
    end: int
    """The stretch of tokens that is drawn."""


@dataclass(frozen=True, slots=True)
class DrawnSample:
    """The training sample that an episode is."""

    loss: LossSettings
    advantages: dict[int, float]
    """Those of its group by attempt; without episodes that have no reward."""
    problem: str
    """Says why nothing of it is trained on; empty if it is."""
    colour: str
    """The class of its response tokens."""
    sequences: tuple[DrawnSequence, ...]
    """Those of one page."""
    pages: Sequence[int]
    """The first sequence of each page."""


def drawn_sample(
    siblings: Sequence[Trajectory],
    own: EpisodeKey,
    loss: LossSettings,
    words: TokenWords,
    images: Path,
    *,
    sequence: int = 0,
    tokens_from: int = 0,
) -> DrawnSample:
    """Return the sample of an episode among its siblings: the page of sequences with the one asked for.

    That one is drawn from the token `tokens_from` on, the others from their first.
    """
    from rl_agent.trainer.grpo.data.intake import with_masks
    from rl_agent.trainer.grpo.data.samples import make_group
    from rl_agent.trainer.grpo.step.advantages import episode_advantages

    comparison = Comparison(loss)
    group = with_masks(make_group(siblings), comparison)
    values = episode_advantages(group.samples, comparison) if group.samples else []
    by_key = {sample.key: value for sample, value in zip(group.samples, values, strict=True)}
    problem = _problem(group, str(own), comparison, words.image_token)
    colour = "unused" if problem else colour_of(by_key[str(own)])
    segments = next((sample.segments for sample in group.samples if sample.key == str(own)), ())
    first = max(0, min(sequence, len(segments) - 1)) // SEQUENCES_A_PAGE * SEQUENCES_A_PAGE
    return DrawnSample(
        loss,
        {each.key.attempt: by_key[str(each.key)] for each in siblings if str(each.key) in by_key},
        problem,
        colour,
        tuple(
            _sequence(number, segment, words, colour, images, tokens_from if number == sequence else 0)
            for number, segment in list(enumerate(segments))[first : first + SEQUENCES_A_PAGE]
        ),
        range(0, len(segments), SEQUENCES_A_PAGE),
    )


def _problem(group: "Group", key: str, comparison: Comparison, image_token: int | None) -> str:
    """Say why the trainer makes no loss of an episode; empty if it makes one."""
    from rl_agent.trainer.grpo.data.images import placed_images

    segments = (segment for sample in group.samples for segment in sample.segments)
    if group.flaw:
        return f"Its group is left out, for an episode of it holds {group.flaw}."
    if image_token is not None and any(placed_images(segment, image_token) is None for segment in segments):
        return "Its group is left out: an episode of it has not as many places for images as images."
    if key not in {sample.key for sample in group.samples}:
        return "It has no reward, so it is not compared with its siblings."
    if key in group.masked:
        return "It is masked: a response was cut off. It counts among its siblings all the same."
    if comparison.loss.drop_uninformative and not comparison.is_informative(group.samples):
        return "Its group is left out: no episode of it has an advantage."
    return ""


def colour_of(advantage: float) -> str:
    """Return the class of tokens with this advantage: by its sign, and its size from 1 to 3."""
    size = 1 + sum(abs(advantage) > step for step in SIZES)
    return f"up{size}" if advantage > 0 else f"down{size}" if advantage < 0 else "even"


def _sequence(
    number: int, segment: "Segment", words: TokenWords, colour: str, images: Path, begin: int
) -> DrawnSequence:
    from rl_agent.trainer.grpo.data.images import placed_images

    places = placed_images(segment, words.image_token)
    is_text = np.ones(len(segment), np.bool_)
    for image in places or ():
        is_text[image.start : image.start + image.tokens] = False
    text = np.flatnonzero(is_text)
    first = int(np.searchsorted(text, begin))
    shown = text[first : first + TOKENS_A_SEQUENCE]
    end = int(shown[-1]) + 1 if first + len(shown) < len(text) else len(segment)
    ahead = text[max(0, first - READ_BEFORE) : first]
    texts = words.texts(segment.token_ids[[*ahead, *shown]].tolist())[len(ahead) :]
    here = [image for image in places or () if begin <= image.start < end]
    starts = [image.start for image in here]

    def run_of(token: tuple[int, str]) -> tuple[int, int]:
        """Context between two images is one run, and so is each token of a response."""
        return bisect_right(starts, token[0]), token[0] if segment.is_response[token[0]] else -1

    pieces: list[tuple[int, DrawnToken | DrawnImage]] = [
        (image.start, DrawnImage(address_of(image.path, images), image.tokens)) for image in here
    ]
    pieces += [(-1, DrawnImage(address_of(path, images), 0)) for path in segment.images if places is None]
    for (_, at), run in groupby(zip(shown.tolist(), texts, strict=True), run_of):
        tokens = list(run)
        title = f"token {segment.token_ids[at]}, logprob {segment.behaviour[at]:.3f}"
        drawn = DrawnToken("".join(text for _, text in tokens), colour, title)
        if at < 0:
            drawn = replace(drawn, colour="context", words=f"{len(tokens)} tokens of context")
        pieces.append((tokens[0][0], drawn))
    in_order = tuple(piece for _, piece in sorted(pieces, key=lambda piece: piece[0]))
    return DrawnSequence(number, in_order, len(segment), int(segment.is_response.sum()), begin, end)
