"""Converts the `weights` group of the configuration to the settings of this package's parts."""

import os
import tempfile
from pathlib import Path

from rl_agent.config import Plan
from rl_agent.weights.download.fetch import FetchSettings
from rl_agent.weights.download.receive import ReceiveSettings
from rl_agent.weights.format.delta_policy import DeltaSettings
from rl_agent.weights.publish.publish import PublishSettings
from rl_agent.weights.server.server import ServerSettings
from rl_agent.weights.store.owner_lock import STORE_PREFIX
from rl_agent.weights_config import WeightsConfig

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - folders below it have a name of their user's own
_TRAINER = "trainer"
_MOST_THREADS = 8
_STOP_POLL_S = 0.2
_BYTES_PER_GBIT = 1e9 / 8


def publish_settings(weights: WeightsConfig, *, dtype: str | None) -> PublishSettings:
    """`dtype`: what floats are cast to; None leaves them as they are."""
    delta = DeltaSettings(
        mode=weights.delta,
        block_bytes=2**10 * weights.delta_block_kib,
        link_bytes_per_s=_BYTES_PER_GBIT * weights.link_gbit_per_s,
        retry_after=weights.delta_retry_after,
    )
    piece_bytes = 2**20 * weights.piece_mib
    return PublishSettings(piece_bytes, _threads(weights), dtype, delta, weights.check_finite)


def server_settings(weights: WeightsConfig, hosts: tuple[str, ...], port: int) -> ServerSettings:
    cap = weights.cap_gbit_per_s
    return ServerSettings(
        hosts,
        port,
        weights.max_connections,
        idle_timeout_s=weights.idle_timeout_s,
        piece_timeout_s=weights.piece_timeout_s,
        bytes_per_s=None if cap is None else _BYTES_PER_GBIT * cap,
    )


def receive_settings(weights: WeightsConfig) -> ReceiveSettings:
    fetch = FetchSettings(
        streams_per_source=weights.streams_per_source,
        pieces_at_once=weights.pieces_at_once,
        piece_timeout_s=weights.piece_timeout_s,
        retries=weights.retries,
        retry_pause_s=weights.retry_pause_s,
        max_wrong_pieces=weights.max_wrong_pieces,
        stop_poll_s=_STOP_POLL_S,
    )
    return ReceiveSettings(fetch, _threads(weights), weights.max_deltas)


def _threads(weights: WeightsConfig) -> int:
    return weights.threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)))


def base_folder(weights: WeightsConfig) -> Path:
    """Return the folder below which stores are made."""
    is_usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    return weights.store or (SHARED_MEMORY if is_usable else Path(tempfile.gettempdir()))


def store_folder(plan: Plan) -> Path:
    """Return the folder of this node's stores for this start of the run."""
    return base_folder(plan.config.weights) / f"{STORE_PREFIX}{plan.run_id}-{plan.incarnation}"


def trainer_folder(plan: Plan) -> Path:
    """Return the store folder of this node's streaming trainer."""
    return store_folder(plan) / _TRAINER


def trainer_folders(base: Path) -> list[Path]:
    """Where trainers of this host may have versions, for a worker that keeps its own below `base`.

    A run's own worker keeps them below the run's folder, any other beside the runs' folders.
    """
    return [base / _TRAINER, *base.glob(f"{STORE_PREFIX}*/{_TRAINER}")]
