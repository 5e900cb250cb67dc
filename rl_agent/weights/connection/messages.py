"""Defines the JSON messages between a receiver and a weight server, and checks them on either side.

docs/reference/weights-format.md has the list. Nothing is taken for what it is not: true is not a number here.
"""

from typing import Annotated

from msgspec import UNSET, DecodeError, Meta, Struct, UnsetType, json

from rl_agent.errors import WeightsError

Session = Annotated[str, Meta(pattern=r"^[\w.:\[\]-]{1,255}:[0-9]{1,5}$")]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Question(Struct, tag_field="op", forbid_unknown_fields=True, frozen=True):
    """The base class of the questions of a receiver."""


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


class ServerAnswer(Struct, frozen=True, omit_defaults=True):
    """The server's answer: the field that the question asks for, or `error`."""

    error: str | UnsetType = UNSET
    indices: tuple[Number, ...] | UnsetType = UNSET
    size_bytes: Number | UnsetType = UNSET
    session: Session | UnsetType = UNSET
    address: Number | UnsetType = UNSET
    invitation: str | UnsetType = UNSET


_QUESTIONS: json.Decoder[Question] = json.Decoder(Question)
_ANSWERS = json.Decoder(ServerAnswer)


def dump(message: Question | ServerAnswer) -> bytes:
    return json.encode(message)


def parse_question(content: bytes) -> Question:
    """Read a question. Raises WeightsError if it is invalid."""
    try:
        return _QUESTIONS.decode(content)
    except (DecodeError, ValueError, RecursionError) as error:
        raise WeightsError(f"invalid request: {error!s:.200}") from error


def parse_answer(content: bytes) -> ServerAnswer:
    """Read an answer. Raises WeightsError if it is invalid, or is an error."""
    try:
        answer = _ANSWERS.decode(content)
    except (DecodeError, ValueError, RecursionError) as error:
        raise WeightsError(f"invalid reply: {error!s:.200}") from error
    if answer.error is not UNSET:
        raise WeightsError(answer.error)
    return answer
