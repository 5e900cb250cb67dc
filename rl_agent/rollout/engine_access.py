"""Connects a rollout to its engine: the node's own or the run's pool, if it serves the wanted model."""

import os

from rl_agent.config import Config, Plan
from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.model import ResolvedModel
from rl_agent.engine.served import version_served
from rl_agent.engine.wire import ServedModel
from rl_agent.errors import MachineError, RetryLater
from rl_agent.pool import run_pool


def engine_client(plan: Plan, wanted: ResolvedModel) -> EngineClient:
    """Make the client of the node's engine, or of the pool, which is used like one."""
    config = plan.config
    if config.is_pooled:
        url, key, tls_ca = run_pool.manager_url(plan), run_pool.token(plan, os.environ), run_pool.tls_ca(plan)
    else:
        url, key, tls_ca = config.engine.base_url, os.environ.get(config.engine.api_key_env_var), None
    settings = ClientSettings(
        request_timeout_s=config.rollout.request_timeout_s,
        retries=config.rollout.request_retries,
        api_key=key,
        tls_ca=tls_ca,
        run=plan.run_id,
    )
    return EngineClient(url, settings, identify=lambda served: identify(served, config, wanted))


def identify(served: ServedModel, config: Config, wanted: ResolvedModel) -> int:
    """Return the weight version of the served model. Raises ConfigError if this run wants another.

    The run's own pool says its version itself, which may be ahead of the newest folder.
    """
    if config.is_pooled and served.weight_version is not None:
        if served.weight_version < wanted.weight_version:
            raise RetryLater(
                f"the pool is at weight version {served.weight_version}, not at {wanted.weight_version}"
            )
        return served.weight_version
    version = version_served(served.root, config, wanted)
    if version is None or version != wanted.weight_version:
        raise MachineError(
            f"the engine at {config.engine.base_url} serves {served.root}, this run wants {wanted.path};"
            " stop that server, or set engine.port or engine.url"
        )
    return version
