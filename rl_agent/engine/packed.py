"""The wire of our own route in a vLLM server: token ids in, packed token ids and logprobs out. Pure.

    request   JSON: the prompt's token ids, its images, how many tokens to send together, every sampling
              parameter
    answer    frames: u32 tokens, u32 letters, u32 prompt tokens, i32 stop token (-1: none); then i32 token
              ids, f32 logprobs, the letters of the reason for which the response ended, none before its end,
              and i32 ids of the prompt

A token takes 8 bytes, and no Python object of the server's; as an event of JSON it takes about 170. A logprob
is the float32 that the engine computed, so both wires give the same number.

A prompt has one token for each of its images, as the chat template writes it; the server puts in its place
what the model sees, and the first frame tells the whole prompt. An image is named by the SHA-256 of its file,
and its content is sent to a server that does not have it: 409 names those that are missing.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rl_agent.engine.shapes import UNREADABLE, EngineChoice, EngineLogprobs, TokenId

PATH = "/v1/packed_tokens"
"""Below `/v1`, so that vLLM's `--api-key` guards it. A GET tells that the server has the route."""
ROUTE_KEEPALIVE_S = 60.0
"""Clients of the route keep idle connections for so long: a training lies between two rollouts."""
SERVER_KEEPALIVE_S = 75
"""A server that has the route drops them after so long."""
RENDER_PATH = f"{PATH}/render"
"""Renders a chat, in which images have a `uuid` and no `image_url`, to the prompt of a request."""
MAX_FRAME_BYTES = 16 * 1024 * 1024
_HEAD = struct.Struct("<IIIi")
_TOKEN_BYTES, _ID_BYTES = 8, 4


class PackedSampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that may be asked for; what the model's own files might fill in must be stated."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop_token_ids: tuple[TokenId, ...] = ()
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image of a prompt as its file here."""

    digest: str
    """The SHA-256 of the file, in hexadecimal digits."""
    path: Path


class ImageContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An image of a prompt."""

    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """The SHA-256 of the file."""
    content: bytes | None = None
    """The file, in base64; None where the server should have it."""


class PackedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    request_id: str
    prompt: list[TokenId]
    interval: Annotated[int, msgspec.Meta(ge=1)] | None
    """The tokens that are sent together; None: all."""
    sampling: PackedSampling
    images: tuple[ImageContent, ...] = ()
    """The images in the order of their tokens."""


class RenderedChat(msgspec.Struct, frozen=True):
    """The answer of `RENDER_PATH`."""

    token_ids: list[TokenId]
    sampling: dict[str, int | float]
    """The parameters that must be stated, with what the chat and the model's own files say."""


class MissingImages(msgspec.Struct, frozen=True):
    """The answer 409: digests of images whose content is needed."""

    missing: tuple[str, ...]


MISSING = 409
MAX_SENT_IMAGES = 100_000
"""Digests that a sender remembers of one server, 15 MB; with more it begins anew, and sends files again."""
PARAMETERS = frozenset(PackedSampling.__struct_fields__)
MODELS_OWN = frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})
"""Parameters that the model's generation_config.json may fill in elsewhere."""
REQUEST = msgspec.json.Decoder(PackedRequest)
_MISSING_IMAGES = msgspec.json.Decoder(MissingImages)


def packed_request(
    prompt: Sequence[int],
    sampling: dict[str, Any],
    request_id: str,
    interval: int | None,
    images: Sequence[ImageContent] = (),
) -> bytes:
    """Return the body of a request."""
    body = {"request_id": request_id, "prompt": prompt, "interval": interval, "sampling": sampling}
    return msgspec.json.encode(body | {"images": images} if images else body)


def check_contents(images: Iterable[ImageContent]) -> None:
    """Raises ValueError for a content that has another digest: it would be shown wherever that is named."""
    for image in images:
        if image.content is not None and hashlib.sha256(image.content).hexdigest() != image.digest:
            raise ValueError(f"the image {image.digest} has another content")


def read_missing(payload: bytes) -> frozenset[str]:
    """Read which images a server asks for; none in another answer."""
    try:
        return frozenset(_MISSING_IMAGES.decode(payload).missing)
    except UNREADABLE:
        return frozenset()


def pack(
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    finish_reason: str | None,
    stop_token: int | None,
    prompt: Sequence[int] = (),
) -> bytes:
    """Return a frame. Raises ValueError unless every token has a logprob."""
    size = len(token_ids)
    if len(logprobs) != size:
        raise ValueError(f"{size} tokens with {len(logprobs)} logprobs")
    reason = (finish_reason or "").encode()
    head = _HEAD.pack(size, len(reason), len(prompt), -1 if stop_token is None else stop_token)
    tokens = struct.pack(f"<{size}i{size}f", *token_ids, *logprobs)
    return head + tokens + reason + struct.pack(f"<{len(prompt)}i", *prompt)


def unpack(frame: bytes) -> EngineChoice:
    """Return what a whole frame of `PackedFrames` holds. Raises UnicodeDecodeError."""
    size, letters, prompt, stop_token = _HEAD.unpack_from(frame)
    numbers = struct.unpack_from(f"<{size}i{size}f", frame, _HEAD.size)
    reason_at = _HEAD.size + _TOKEN_BYTES * size
    prompt_at = reason_at + letters
    return EngineChoice(
        token_ids=numbers[:size],
        logprobs=EngineLogprobs(token_logprobs=numbers[size:]),
        finish_reason=frame[reason_at:prompt_at].decode() or None,
        stop_reason=None if stop_token < 0 else stop_token,
        prompt_token_ids=struct.unpack_from(f"<{prompt}i", frame, prompt_at) or None,
    )


class PackedFrames:
    """Splits bytes into frames: `feed` returns those that are complete."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, received: bytes) -> list[bytes]:
        """Raises ValueError if a frame would grow beyond all reason."""
        self._rest += received
        frames = []
        while len(self._rest) >= _HEAD.size:
            tokens, letters, prompt, _ = _HEAD.unpack_from(self._rest)
            size = _HEAD.size + _TOKEN_BYTES * tokens + letters + _ID_BYTES * prompt
            if size > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of more than {MAX_FRAME_BYTES} bytes")
            if len(self._rest) < size:
                break
            frames.append(bytes(self._rest[:size]))
            del self._rest[:size]
        return frames
