"""The `weights` group of the configuration as the parts of this package want it."""

import os
from pathlib import Path

from rl_agent.config import Plan, WeightsConfig
from rl_agent.weights.delta_policy import DeltaSettings
from rl_agent.weights.publish import PublishSettings

_MOST_THREADS = 8


def publish_settings(weights: WeightsConfig) -> PublishSettings:
    delta = DeltaSettings(
        mode=weights.delta,
        block_bytes=2**10 * weights.delta_block_kib,
        link_bytes_per_s=1e9 * weights.delta_link_gb_per_s,
        retry_after=weights.delta_retry_after,
    )
    threads = weights.threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    return PublishSettings(2**20 * weights.piece_mib, threads, weights.serving_dtype, delta)


def store_folder(plan: Plan) -> Path:
    """The versions that this node keeps while this start of the run lasts."""
    return plan.config.weights.store / f"rl-agent-{plan.run_id}-{plan.incarnation}"
