"""Defines the frames of a worker's tunnel: many HTTP exchanges over one connection, by number. Pure.

A frame is one binary message: a line of JSON, then raw bytes.
    manager → worker   {"kind": "open", "id": 7, "method": "POST", "path": "/v1/completions"} + body
                       {"kind": "close", "id": 7}
    worker → manager   {"kind": "head", "id": 7, "status": 200}
                       {"kind": "data", "id": 7} + bytes
                       {"kind": "end", "id": 7}
                       {"kind": "error", "id": 7, "words": "…"}
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from rl_agent.engine.packed import PATH as PACKED_TOKENS
from rl_agent.engine.packed import RENDER_PATH

MAX_FRAME_BYTES = 128 * 1024 * 1024

ENGINE_PATHS = frozenset(
    {
        "/health",
        "/metrics",
        "/openapi.json",
        "/tokenize",
        "/detokenize",
        "/generate",
        "/v1/models",
        PACKED_TOKENS,
        RENDER_PATH,
        "/model_info",
        "/v1/completions",
        "/v1/chat/completions/render",
        "/v1/chat/completions/derender",
        "/v1/completions/derender",
    }
)
"""All that a manager may ask of an engine; a worker passes on nothing else."""


class Frame(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    id: Annotated[int, Field(ge=0)]


class Open(Frame):
    kind: Literal["open"] = "open"
    method: Literal["GET", "POST"]
    path: str


class Close(Frame):
    kind: Literal["close"] = "close"


class Head(Frame):
    kind: Literal["head"] = "head"
    status: Annotated[int, Field(ge=100, le=599)]


class Data(Frame):
    kind: Literal["data"] = "data"


class End(Frame):
    kind: Literal["end"] = "end"


class Error(Frame):
    kind: Literal["error"] = "error"
    words: str


ToWorker = Open | Close
ToManager = Head | Data | End | Error
_TO_WORKER: TypeAdapter[ToWorker] = TypeAdapter(Annotated[ToWorker, Field(discriminator="kind")])
_TO_MANAGER: TypeAdapter[ToManager] = TypeAdapter(Annotated[ToManager, Field(discriminator="kind")])


def pack(frame: Frame, payload: bytes = b"") -> bytes:
    return frame.model_dump_json().encode() + b"\n" + payload


def read_for_worker(message: bytes) -> tuple[ToWorker, bytes]:
    """Raises ValueError if it is not a frame."""
    head, _, payload = message.partition(b"\n")
    return _TO_WORKER.validate_json(head), payload


def read_for_manager(message: bytes) -> tuple[ToManager, bytes]:
    """Raises ValueError if it is not a frame."""
    head, _, payload = message.partition(b"\n")
    return _TO_MANAGER.validate_json(head), payload
