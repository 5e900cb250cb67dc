"""Lets verl sample over a pool: its rollout `rl_agent`, which verl loads as a plug-in of its own.

    agent loops ─► PoolServer, one Ray actor ─► the pool's manager ─► engines that come and go
    trainer ─► PoolRollout, rank 0 publishes ─────────────────────► the same engines
                    └─► PoolServer: from now on only these weights may sample

No engine is started here, and none is on the trainer's GPUs.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.wire import Sampling
from rl_agent.errors import ConfigError
from rl_agent.library.publish import WeightPublisher

NAME = "rl_agent"
"""The value of `actor_rollout_ref.rollout.name`, the key in its `engine_kwargs`, and the Ray actor's name."""
KEYS = "actor_rollout_ref.rollout"
TIMEOUT_S = 3600.0
"""Longest wait for a response, engines that are yet to come included, and for a manager to take weights."""
RETRIES = 20
"""Attempts after connection errors and 5xx: verl gives a prompt up at the first error, and a manager may be
restarted."""


@dataclass(frozen=True, slots=True)
class PoolAddress:
    """Reaches a pool: the values of `actor_rollout_ref.rollout.engine_kwargs.rl_agent`."""

    pool: str
    """The manager's address."""
    token_file: str | None = None
    """A file with the pool's token, on each node of verl."""
    tls_ca: str | None = None
    weights: Sequence[str] = ()
    """Keys of the group `weights`, `key=value`, such as `host=10.0.0.1` for engines on other machines."""

    @classmethod
    def of(cls, rollout: Any) -> "PoolAddress":
        """Read verl's rollout configuration. Raises ConfigError for what a pool cannot do."""
        try:
            address = cls(**rollout.engine_kwargs.get(NAME, {}))
        except TypeError as error:
            raise ConfigError(
                f"{KEYS}.engine_kwargs.{NAME}: {error}; expected pool=http://HOST:PORT and, where needed,"
                " token_file, tls_ca, weights"
            ) from error
        shape = rollout.temperature, rollout.top_p, rollout.top_k
        if rollout.calculate_log_probs and shape not in ((1, 1, -1), (1, 1, 0)):
            raise ConfigError(
                f"{KEYS}.calculate_log_probs: engines of a pool tell the logprobs of the model before"
                " temperature, top_p and top_k; leave these at 1, 1 and -1, or let verl compute the logprobs"
            )
        return address

    @property
    def token(self) -> str | None:
        return None if self.token_file is None else Path(self.token_file).read_text().strip()

    @property
    def authority(self) -> Path | None:
        return None if self.tls_ca is None else Path(self.tls_ca)


class PoolServer:
    """Asks the pool for what verl's agent loops want, by tokens. One Ray actor for all of them."""

    def __init__(self, rollout: Any) -> None:
        self._rollout = rollout
        self._address = PoolAddress.of(rollout)
        self._lock = asyncio.Lock()
        self._client: EngineClient | None = None
        self._weight_version = 0
        self._steps = dict[int, int | None]()
        """Weight version -> verl's global step."""

    async def connect(self) -> None:
        """Reach the pool. Raises RetryLater if nobody answers there."""
        async with self._lock:
            if self._client is None:
                address = self._address
                settings = ClientSettings(TIMEOUT_S, RETRIES, address.token, address.authority)
                client = EngineClient(address.pool, settings, identify=lambda served: 0)
                self._client = await client.__aenter__()  # it ends with the actor

    async def follow(self, weight_version: int, global_steps: int | None) -> None:
        """Let only these weights and later ones sample what is asked for from now on."""
        self._weight_version = weight_version
        self._steps[weight_version] = global_steps

    async def generate(
        self, request_id: str, *, prompt_ids: Any, sampling_params: dict[str, Any], **others: Any
    ) -> TokenOutput:
        """Draw one response; engines may die meanwhile."""
        if shown := [name for name, value in others.items() if value and name != "priority"]:
            raise ConfigError(f"{KEYS}.name={NAME}: takes texts, not {', '.join(shown)}")
        assert self._client is not None
        prompt = [int(token) for token in prompt_ids]
        sampling = self._sampling(len(prompt), dict(sampling_params))
        generation = await self._client.generate(
            prompt, sampling, request_id=request_id, decode=lambda *_: ""
        )
        steps = [self._steps.get(span.weight_version) for span in generation.spans]
        return TokenOutput(
            token_ids=list(generation.token_ids),
            log_probs=list(generation.logprobs) if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            extra_fields={
                "global_steps": steps[-1],
                "min_global_steps": steps[0],
                "max_global_steps": steps[-1],
            },
        )

    def _sampling(self, prompt_size: int, params: dict[str, Any]) -> Sampling:
        rollout = self._rollout
        room = min(rollout.response_length, rollout.prompt_length + rollout.response_length - prompt_size)
        limits = [params.pop(name) for name in ("max_tokens", "max_new_tokens") if name in params]
        sampling = Sampling(
            temperature=params.pop("temperature", 1.0),
            top_p=params.pop("top_p", 1.0),
            top_k=params.pop("top_k", -1),
            min_p=params.pop("min_p", 0.0),
            max_tokens=max(1, int((limits or [room])[0])),
            seed=params.pop("seed", None) or random.getrandbits(31),
            stop_token_ids=tuple(params.pop("stop_token_ids", None) or ()),
            min_weight_version=self._weight_version,
        )
        params.pop("logprobs", None)
        if params.pop("repetition_penalty", 1.0) != 1.0 or any(params.values()):
            raise ConfigError(f"{KEYS}.name={NAME}: a pool does not sample with {params or 'penalties'}")
        return sampling


class PoolReplica(RolloutReplica):  # type: ignore[misc]
    """Stands for the engines of the pool at verl's router; all replicas are the same server."""

    async def init_standalone(self) -> None:
        """Refuse the mode that gives engines GPUs of verl's own."""
        raise ConfigError(f"{KEYS}.name={NAME}: for trainer.v1.trainer_mode sync or colocate_async")

    async def launch_servers(self) -> None:
        """Reach the pool; it has no servers that could sleep, wake up or be asked to abort."""
        address = PoolAddress.of(self.config)
        how = {"name": NAME, "get_if_exists": True, "num_cpus": 0, "max_concurrency": 100_000}
        server = ray.remote(PoolServer).options(**how).remote(self.config)
        await server.connect.remote()
        self._server_handle, self._server_address = server, address.pool


class PoolRollout(BaseRollout):  # type: ignore[misc]
    """Publishes the trainer's weights to the pool; one is in every rank, and rank 0 publishes."""

    _publisher: WeightPublisher | None = None

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: engines of a pool have GPUs of their own."""

    async def release(self) -> None:
        """Do nothing: engines of a pool have GPUs of their own."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]] | AsyncIterator[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        peft_config: object = None,
        **_: object,
    ) -> None:
        """Publish the next version, and let nothing older sample. Raises ConfigError for a bare adapter."""
        if peft_config is not None or wire_format != "named_tensors":
            raise ConfigError(
                f"{KEYS}.name={NAME}: engines of a pool take whole weights:"
                f" actor_rollout_ref.model.lora.merge=True {KEYS}.checkpoint_engine.backend=naive"
            )
        is_first, state = torch.distributed.get_rank() == 0, dict[str, torch.Tensor]()
        dtype: torch.dtype = getattr(torch, self.config.dtype)
        async for name, tensor in ensure_async_iterator(weights):  # a collective: every rank goes through it
            if is_first:
                kept = dtype if tensor.is_floating_point() else tensor.dtype
                state[name] = tensor.detach().to("cpu", kept, copy=True)
        if is_first:
            version = await asyncio.to_thread(self._publish, state)
            await ray.get_actor(NAME).follow.remote(version, global_steps)

    def _publish(self, state: dict[str, torch.Tensor]) -> int:
        if self._publisher is None:
            address = PoolAddress.of(self.config)
            publisher = WeightPublisher(
                address.pool, api_key=address.token, tls_ca=address.authority, settings=address.weights
            )
            self._publisher = publisher.__enter__()  # it ends with this process
        return self._publisher.publish(state, timeout_s=TIMEOUT_S)


RolloutReplicaRegistry.register(NAME, lambda: PoolReplica)
_ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.{PoolRollout.__name__}"
