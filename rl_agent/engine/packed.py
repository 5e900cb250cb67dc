"""The wire of our own route in a vLLM server: token ids in, packed token ids and logprobs out. Pure.

    request   JSON: the prompt's token ids, how many tokens to send together, every sampling parameter
    answer    frames: u32 tokens, u32 letters, i32 stop token (-1: none); then i32 token ids, f32 logprobs,
              and the letters of the reason for which the response ended, none before its end

A token takes 8 bytes, and no Python object of the server's; as an event of JSON it takes about 170. A logprob
is the float32 that the engine computed, so both wires give the same number.
"""

import struct
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from rl_agent.engine.shapes import EngineChoice, EngineLogprobs, TokenId

PATH = "/v1/packed_tokens"
"""Below `/v1`, so that vLLM's `--api-key` guards it. A GET tells that the server has the route."""
MAX_FRAME_BYTES = 16 * 1024 * 1024
_HEAD = struct.Struct("<IIi")
_TOKEN_BYTES = 8


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


class PackedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    request_id: str
    prompt: list[TokenId]
    interval: Annotated[int, msgspec.Meta(ge=1)] | None
    """The tokens that are sent together; None: all."""
    sampling: PackedSampling


PARAMETERS = frozenset(PackedSampling.__struct_fields__)
REQUEST = msgspec.json.Decoder(PackedRequest)


def packed_request(
    prompt: Sequence[int], sampling: dict[str, Any], request_id: str, interval: int | None
) -> bytes:
    """Return the body of a request."""
    body = {"request_id": request_id, "prompt": prompt, "interval": interval, "sampling": sampling}
    return msgspec.json.encode(body)


def pack(
    token_ids: Sequence[int], logprobs: Sequence[float], finish_reason: str | None, stop_token: int | None
) -> bytes:
    """Return a frame. Raises ValueError unless every token has a logprob."""
    size = len(token_ids)
    if len(logprobs) != size:
        raise ValueError(f"{size} tokens with {len(logprobs)} logprobs")
    reason = (finish_reason or "").encode()
    head = _HEAD.pack(size, len(reason), -1 if stop_token is None else stop_token)
    return head + struct.pack(f"<{size}i{size}f", *token_ids, *logprobs) + reason


def unpack(frame: bytes) -> EngineChoice:
    """Return what a whole frame of `PackedFrames` holds. Raises UnicodeDecodeError."""
    size, _, stop_token = _HEAD.unpack_from(frame)
    numbers = struct.unpack_from(f"<{size}i{size}f", frame, _HEAD.size)
    return EngineChoice(
        token_ids=numbers[:size],
        logprobs=EngineLogprobs(token_logprobs=numbers[size:]),
        finish_reason=frame[_HEAD.size + _TOKEN_BYTES * size :].decode() or None,
        stop_reason=None if stop_token < 0 else stop_token,
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
            tokens, letters, _ = _HEAD.unpack_from(self._rest)
            size = _HEAD.size + _TOKEN_BYTES * tokens + letters
            if size > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of more than {MAX_FRAME_BYTES} bytes")
            if len(self._rest) < size:
                break
            frames.append(bytes(self._rest[:size]))
            del self._rest[:size]
        return frames
