"""Defines the messages between those who step environments and the processes where these live.

    caller ─► Make, Reset, Act, CloseInstance, Cancel, Ping ─► host        one frame each, MessagePack
           ◄─ Made, Shown, Stepped, Closed, Failed, Pong, Draining

The same messages go to a worker process over a socket pair and to an environment server over a WebSocket.
Nothing is taken for what it is not: a frame that is too long, of another type or with a number that is not
finite is a `WireError`, and whoever sent it is not spoken to any more. No code, no name of a
class or module and no setting of an environment is sent: some settings name programs, modules and folders.
"""

import math
import traceback
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from rl_agent.env.values import MAX_REWARDS, raised
from rl_agent.errors import (
    ConfigError,
    EnvironmentFailure,
    EnvironmentLost,
    EnvironmentRefusal,
    EnvironmentUnavailable,
    RolloutError,
)
from rl_agent.system.json_values import problem_of
from rl_agent.types import Observation, StepResult, Task, writable

VERSION = 3
MAX_FRAME_BYTES = 2**27
MAX_TEXT = 2**24
"""Characters of an observation or an action."""
MAX_IMAGES = 64
MAX_IMAGE_BYTES = 2**26
MAX_MESSAGE = 4000
MAX_TRACEBACK = 20_000

Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=500)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Reason = Literal["failure", "refusal", "unavailable", "lost", "crash", "full"]


class NoPlace(EnvironmentLost):
    """All places there are taken; another one, or the same later, may have one."""


class NotMade(EnvironmentLost):
    """A host answers, but has not made an environment in time."""


class WireError(EnvironmentLost):
    """The other side sent what is not a message of this protocol."""


class _Message(Struct, tag=True, frozen=True, array_like=True):
    """The base class of all messages."""


class _Call(_Message, frozen=True):
    """A question about an instance, by the number that its answer names."""

    call: Number
    instance: Number


class Make(_Call, frozen=True):
    """Find a place for a new instance, and make it with the settings that the host has for its kind."""

    kind: Name
    crashes: Number = 0
    """Workers that ended while they ran earlier attempts at this episode: it goes to one with few others."""


class Reset(_Call, frozen=True):
    task: Task
    seed: int


class Act(_Call, frozen=True):
    action: Text


class CloseInstance(_Call, frozen=True):
    pass


class _OfCall(_Message, frozen=True):
    """The answer to a call."""

    call: Number


class Cancel(_OfCall, frozen=True):
    """Nobody waits for this call any more."""


class Ping(_Message, frozen=True):
    pass


class Seen(Struct, frozen=True, array_like=True):
    """An observation: its images as paths that both sides can read, or as the files' bytes."""

    text: Text
    paths: Annotated[tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=MAX_IMAGES)] = ()
    contents: Annotated[
        tuple[Annotated[bytes, Meta(max_length=MAX_IMAGE_BYTES)], ...], Meta(max_length=MAX_IMAGES)
    ] = ()


class Made(_OfCall, frozen=True):
    pass


class Shown(_OfCall, frozen=True):
    """The answer to Reset."""

    seen: Seen


class Stepped(_OfCall, frozen=True):
    """The answer to Act."""

    seen: Seen
    reward: float
    done: bool
    truncated: bool
    changed: bool
    invalid: bool
    rewards: Annotated[dict[str, float], Meta(max_length=MAX_REWARDS)] = {}


class Closed(_OfCall, frozen=True):
    pass


class Failed(_OfCall, frozen=True):
    reason: Reason
    message: Annotated[str, Meta(max_length=MAX_MESSAGE)]
    traceback: Annotated[str, Meta(max_length=MAX_TRACEBACK)] = ""
    """The end of the traceback of an environment's own exception."""


class Pong(_Message, frozen=True):
    pass


class Draining(_Message, frozen=True):
    """The sender begins no more episodes; those that run may end."""


Question = Make | Reset | Act | CloseInstance | Cancel | Ping
HostMessage = Made | Shown | Stepped | Closed | Failed | Pong | Draining

_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M")
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_answers: msgspec.msgpack.Decoder[HostMessage] = msgspec.msgpack.Decoder(HostMessage)


def encode(message: _Message) -> bytes:
    """Return a frame. Raises EnvironmentRefusal for what a frame cannot carry."""
    try:
        frame = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EnvironmentRefusal(f"this cannot be sent to another process: {writable(str(error))}") from error
    if len(frame) > MAX_FRAME_BYTES:
        raise EnvironmentRefusal(
            f"a message has {len(frame):,} bytes, and at most {MAX_FRAME_BYTES:,} are sent to another process"
        )
    return frame


def read_question(frame: bytes) -> Question:
    """Raises WireError for what no caller may send."""
    message = _read(_questions, frame)
    if isinstance(message, Reset) and (problem := problem_of(message.task.extra, "task.extra")):
        raise WireError(f"an invalid message: {problem}")
    return message


def read_answer(frame: bytes) -> HostMessage:
    """Raises WireError for what no host may send."""
    message = _read(_answers, frame)
    if isinstance(message, Stepped):
        for reward in (message.reward, *message.rewards.values()):
            if not math.isfinite(reward):
                raise WireError(f"an invalid message: the reward {reward}")
    return message


def _read(decoder: msgspec.msgpack.Decoder[M], frame: bytes) -> M:
    if len(frame) > MAX_FRAME_BYTES:
        raise WireError(f"a message of {len(frame):,} bytes; at most {MAX_FRAME_BYTES:,} are read")
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"an invalid message: {writable(str(error))[:300]}") from None


def seen_of(observation: Observation) -> Seen:
    """Return an observation as it is sent, images by path. Raises EnvironmentRefusal if it is too large."""
    if len(observation.text) > MAX_TEXT:
        raise EnvironmentRefusal(
            f"its observation has {len(observation.text):,} characters; at most {MAX_TEXT:,} are accepted"
        )
    if len(observation.images) > MAX_IMAGES:
        raise EnvironmentRefusal(
            f"its observation has {len(observation.images)} images; at most {MAX_IMAGES} are taken"
        )
    return Seen(observation.text, observation.images)


def stepped_of(call: int, result: StepResult, seen: Seen) -> Stepped:
    flags = (result.done, result.truncated, result.changed, result.invalid)
    return Stepped(call, seen, result.reward, *flags, dict(result.rewards))


def result_of(answer: Stepped, images: tuple[str, ...]) -> StepResult:
    return StepResult(
        Observation(answer.seen.text, images),
        answer.reward,
        done=answer.done,
        truncated=answer.truncated,
        changed=answer.changed,
        invalid=answer.invalid,
        rewards=answer.rewards,
    )


_ERRORS: dict[str, type[Exception]] = {
    "failure": EnvironmentFailure,
    "refusal": EnvironmentRefusal,
    "unavailable": EnvironmentUnavailable,
    "lost": EnvironmentLost,
    "full": NoPlace,
}


def error_of(answer: Failed) -> Exception:
    """Return the exception that a failed call raises at the caller."""
    if answer.reason == "crash":
        return EnvironmentLost(answer.message, is_suspect=True)
    error = _ERRORS[answer.reason](answer.message)
    if answer.traceback:
        error.add_note(answer.traceback)
    return error


def failed_of(call: int, error: BaseException) -> Failed:
    """Return what a caller is told of an exception; one that is not ours is the environment's own."""
    if isinstance(error, EnvironmentLost):
        reason: Reason = "crash" if error.is_suspect else "lost"
    elif isinstance(error, EnvironmentRefusal):
        reason = "refusal"
    elif isinstance(error, EnvironmentUnavailable):
        reason = "unavailable"
    elif isinstance(error, ConfigError):
        reason = "refusal"
    else:
        reason = "failure"
    is_ours = isinstance(error, RolloutError | EnvironmentUnavailable)
    text = str(error) if is_ours else raised(error)
    frames = "" if is_ours else writable("".join(traceback.format_exception(error)))
    return Failed(call, reason, writable(text[:1000])[:MAX_MESSAGE], frames[-MAX_TRACEBACK:])
