"""How a worker fetches weights and gives them on: `configs/worker/default.yaml` under `key=value` words."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rl_agent.config import Positive, Seconds, Section
from rl_agent.paths import CONFIG_DIR
from rl_agent.pool.settings import read_settings
from rl_agent.weights.fetch import FetchSettings
from rl_agent.weights.mooncake import Transport
from rl_agent.weights.receive import ReceiveSettings
from rl_agent.weights.server import ServerSettings

DEFAULTS = CONFIG_DIR / "worker" / "default.yaml"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - folders below it are made with a random name, for this user only
MOST_THREADS = 4
STOP_POLL_S = 0.2
_BYTES_PER_GBIT = 1e9 / 8

Count = Annotated[int, Field(ge=0)]


class TransferSettings(Section):
    store: Path | None
    max_deltas: Count
    threads: Positive | None
    streams_per_source: Positive
    pieces_at_once: Positive
    piece_timeout_s: Seconds
    retries: Count
    retry_pause_s: Seconds
    max_wrong_pieces: Count
    transfer_timeout_s: Seconds
    load_timeout_s: Seconds
    transport: Transport
    port: Annotated[int, Field(ge=0, le=65535)]
    max_connections: Positive
    idle_timeout_s: Seconds
    cap_gbit_per_s: Seconds | None

    @property
    def base(self) -> Path:
        """Under which each worker makes a folder of its own."""
        default = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
        return self.store or default

    def receive(self) -> ReceiveSettings:
        fetch = FetchSettings(
            streams_per_source=self.streams_per_source,
            pieces_at_once=self.pieces_at_once,
            piece_timeout_s=self.piece_timeout_s,
            retries=self.retries,
            retry_pause_s=self.retry_pause_s,
            max_wrong_pieces=self.max_wrong_pieces,
            stop_poll_s=STOP_POLL_S,
        )
        threads = self.threads or min(MOST_THREADS, len(os.sched_getaffinity(0)))
        return ReceiveSettings(fetch, threads, self.max_deltas)

    def serve(self, host: str) -> ServerSettings:
        cap = self.cap_gbit_per_s
        return ServerSettings(
            host,
            self.port,
            self.max_connections,
            idle_timeout_s=self.idle_timeout_s,
            piece_timeout_s=self.piece_timeout_s,
            bytes_per_s=None if cap is None else cap * _BYTES_PER_GBIT,
        )


def load_transfer_settings(words: Sequence[str]) -> TransferSettings:
    """Raises ConfigError for a word or value that does not fit."""
    return read_settings(DEFAULTS, TransferSettings, words)
