"""Configuration of the `weights` group: how versions are made, given and fetched."""

import os
from typing import Annotated, Literal

from pydantic import Field, field_validator

from rl_agent.config.sections.base import Above0, CallersPath, Count, Positive, Seconds, Section

BYTES_PER_GBIT = 1e9 / 8
_MOST_THREADS = 16

ListeningPort = Annotated[int, Field(ge=0, le=65535)]
Transport = Literal["tcp", "mooncake", "mooncake_rdma", "nccl", "http"]
"""Our own connections, Mooncake's engine over TCP or RDMA, pairs of GPUs over NCCL, the pool's manager."""


class WeightsConfig(Section):
    update: Literal["restart", "inplace"]
    engine_gpus: tuple[Count, ...] | None
    store: CallersPath | None
    keep_versions: Positive
    serving_dtype: Literal["BF16", "F16", "F32"] | None
    piece_mib: Annotated[int, Field(ge=1, le=1024)]
    threads: Positive | None
    check_finite: bool
    delta: Literal["auto", "always", "never"]
    link_gbit_per_s: Above0
    transport: Transport
    host: tuple[str, ...] | None
    port: ListeningPort
    peer_port: ListeningPort
    cap_gbit_per_s: Above0 | None
    max_connections: Positive
    streams_per_source: Positive
    pieces_at_once: Positive
    max_deltas: Count
    piece_timeout_s: Seconds
    retries: Count

    @field_validator("host", mode="before")
    @classmethod
    def _each(cls, value: object) -> object:
        return [host for host in value.split(",") if host] if isinstance(value, str) else value

    @property
    def is_inplace(self) -> bool:
        return self.update == "inplace"

    @property
    def piece_bytes(self) -> int:
        """The most that a piece has; a small blob has smaller ones."""
        return 2**20 * self.piece_mib

    @property
    def link_bytes_per_s(self) -> float:
        """The rate of a receiver's link: on a fast one the time to encode and decode counts for more."""
        return BYTES_PER_GBIT * self.link_gbit_per_s

    @property
    def thread_count(self) -> int:
        """Threads for checksums and differences."""
        return self.threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)))
