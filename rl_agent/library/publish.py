"""Publishes weights to a pool from Python, as the streaming trainer does."""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from rl_agent.pool.client import Manager
from rl_agent.pool.settings import load_weights
from rl_agent.weights.settings import base_folder
from rl_agent.weights.store.owner_lock import STORE_PREFIX, remove_orphaned
from rl_agent.weights.store.tensor_sources import Checkpoint, StateDict


class WeightPublisher:
    """Serves versions of a model's weights to the engines of a pool; they are gone when its block ends.

        with WeightPublisher("http://127.0.0.1:5000", api_key=token) as publisher:
            publisher.publish(model.state_dict())

    Engines fetch from this process. Those on other machines need its address: `settings=["host=10.0.0.1"]`;
    `settings` takes all keys of the group `weights`. It takes the place of any publisher before it.
    """

    def __init__(
        self,
        pool: str,
        *,
        api_key: str | None = None,
        tls_ca: str | Path | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        self._manager = Manager(pool.rstrip("/"), api_key, None if tls_ca is None else Path(tls_ca))
        self._weights = load_weights(settings)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        from rl_agent.trainer.grpo.publish.feed import PublishingHost

        base = base_folder(self._weights)
        remove_orphaned(base)  # of a program that was killed
        folder = base / f"{STORE_PREFIX}python-{secrets.token_hex(8)}" / "trainer"
        with ExitStack() as stack:
            host = PublishingHost(self._manager, self._weights, folder, stack)
            stack.callback(host.discard)
            self._host = host
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def publish(self, weights: str | Path | Mapping[str, Any], *, timeout_s: float = 60.0) -> int:
        """Let the pool serve these weights; returns their version, once the manager knows it.

        `weights` are the tensors of a model by their names in its checkpoint, in the type that engines hold,
        or a folder of safetensors files. Raises DeadlineError if the manager does not take them in time,
        ConfigError if another publisher has this one's place, WeightsError for what cannot be served.
        """
        source = Checkpoint.of(Path(weights)) if isinstance(weights, str | Path) else StateDict.of(weights)
        version = self._host.publish(max(self._host.newest + 1, 1), source)
        self._host.announcer.wait(timeout_s, lambda: False)
        return version
