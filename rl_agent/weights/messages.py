"""What a receiver asks a weight server, and what that answers: JSON, typed where it enters on either side.

docs/reference/weights-format.md has the list. Nothing is taken for what it is not: true is no number here.
"""

from typing import Annotated

from msgspec import UNSET, DecodeError, Meta, Struct, UnsetType, json

from rl_agent.errors import WeightsError

Session = Annotated[str, Meta(pattern=r"^[\w.:\[\]-]{1,255}:[0-9]{1,5}$")]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Question(Struct, tag_field="op", forbid_unknown_fields=True, frozen=True):
    """One of those below."""


class ManifestQuestion(_Question, tag="manifest", frozen=True):
    version: Number


class RecommendQuestion(_Question, tag="recommend", frozen=True):
    version: Number
    blob: str
    wanted: str
    """Bits, a piece each."""
    limit: Number = 1
    wait_s: Annotated[float, Meta(ge=0)] = 0.0


class PieceQuestion(_Question, tag="piece", frozen=True, omit_defaults=True):
    version: Number
    blob: str
    index: Number
    by: str | None = None
    """"pair": over the pair beside the connection."""


class PlaceQuestion(_Question, tag="place", frozen=True):
    version: Number
    blob: str


class PairQuestion(_Question, tag="pair", frozen=True):
    kind: str


Question = ManifestQuestion | RecommendQuestion | PieceQuestion | PlaceQuestion | PairQuestion


class Answer(Struct, frozen=True, omit_defaults=True):
    """To each question its own field, or why it cannot be met."""

    error: str | UnsetType = UNSET
    indices: tuple[Number, ...] | UnsetType = UNSET
    size_bytes: Number | UnsetType = UNSET
    session: Session | UnsetType = UNSET
    address: Number | UnsetType = UNSET
    invitation: str | UnsetType = UNSET


_QUESTIONS = json.Decoder(Question)
_ANSWERS = json.Decoder(Answer)


def dump(message: Question | Answer) -> bytes:
    return json.encode(message)


def parse_question(content: bytes) -> Question:
    """Raises WeightsError if it is none."""
    try:
        return _QUESTIONS.decode(content)
    except (DecodeError, ValueError, RecursionError) as error:
        raise WeightsError(f"cannot understand the request: {error!s:.200}") from error


def parse_answer(content: bytes) -> Answer:
    """Raises WeightsError if it is none, or says why there is none."""
    try:
        answer = _ANSWERS.decode(content)
    except (DecodeError, ValueError, RecursionError) as error:
        raise WeightsError(f"an answer cannot be understood: {error!s:.200}") from error
    if answer.error is not UNSET:
        raise WeightsError(answer.error)
    return answer
