"""Rollouts that overlap share places for environments, the environments, places at the engine, and lengths.

A rollout that begins early thus gets what the tail of the one before leaves free, and no more runs at once
than `env_config.server_size` and `rollout.max_vllm_sessions` allow.
"""

import asyncio
from dataclasses import dataclass
from typing import get_args

from rl_agent.config.plan import Config
from rl_agent.engine.connections import EngineConnections
from rl_agent.env.remote.environments import Environments
from rl_agent.rollout.collector.lengths import ResponseLengths
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.types import Split


@dataclass(frozen=True, slots=True)
class SharedPlaces:
    """The places of one event loop; whoever makes them opens and closes the environments."""

    places: asyncio.Semaphore
    gate: EngineGate
    environments: Environments
    lengths: dict[Split, ResponseLengths]
    """Empty where no pool wants to know them."""
    connections: EngineConnections | None
    """Those to the engine, if they outlive these rollouts."""

    @classmethod
    def of(cls, config: Config, connections: EngineConnections | None = None) -> "SharedPlaces":
        """Make as many places as the configuration allows."""
        env_config, rollout = config.env_config, config.rollout
        return cls(
            asyncio.Semaphore(env_config.server_size),
            EngineGate(rollout.max_vllm_sessions),
            Environments(env_config),
            {
                split: ResponseLengths.load(config.paths.response_lengths(split))
                for split in get_args(Split)
                if config.is_pooled
            },
            connections,
        )
