"""Collects episodes from Python: the collector of `run.sh` with neither a plan nor a cluster around it.

tasks ─► sample ─► collector ─► (store) ─► finished episodes, or groups of siblings
                       ▲
         environment ──┴── engine: its own server, a pool, a hosted model
"""

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.text_chat import TextChat
from rl_agent.chat.tool_formats import ToolFormat
from rl_agent.chat.tool_template import tool_format_of
from rl_agent.cluster.member.chunk_queue import ClaimedChunk
from rl_agent.config.overrides.words import Kind, Override, parse_override
from rl_agent.config.plan import Config
from rl_agent.engine.client import EngineClient
from rl_agent.engine.model import ResolvedModel
from rl_agent.env.protocol import Environment
from rl_agent.env.registry import problem_with
from rl_agent.env.remote.environments import Environments
from rl_agent.env.reward_function import environment_of
from rl_agent.errors import ConfigError, deliberate
from rl_agent.library.engine_address import EngineAddress
from rl_agent.library.finished import FinishedStream, Give
from rl_agent.library.store import ITERATION, RUN_ID, SPLIT, EpisodeStore
from rl_agent.plan.compose import compose_config
from rl_agent.rollout.collector.collect import Collector
from rl_agent.rollout.collector.episode import Episode
from rl_agent.rollout.collector.failures import FailureReasons
from rl_agent.rollout.collector.lengths import ResponseLengths
from rl_agent.rollout.collector.limit import EngineGate, LimitRule, follow_pressure
from rl_agent.rollout.collector_setup import collect_settings, episode_setup, policy_of
from rl_agent.rollout.conditions import deciding_values
from rl_agent.rollout.engine_access import check_tokens
from rl_agent.rollout.rank_shard import RankShard
from rl_agent.rollout.sample import Ledger, Sample
from rl_agent.rollout.takeover import sole_master
from rl_agent.rollout.trajectories.shard import ShardHeader
from rl_agent.tasks.records import Tasks, tasks_of
from rl_agent.tasks.sample import sample_episodes
from rl_agent.types import Trajectory

log = logging.getLogger(__name__)


class Episodes(FinishedStream[Trajectory]):
    """Episodes as they finish; `groups()` gives siblings together. Made by `collect`."""

    def __init__(self, collection: "_Collection") -> None:
        super().__init__(collection.run)
        self._collection = collection

    def groups(self) -> FinishedStream[tuple[Trajectory, ...]]:
        """Give the attempts at one task together, in their order, once all of them have ended."""
        return FinishedStream(self._collection.run_groups)


def collect(
    tasks: Tasks,
    engine: str,
    *,
    reward: Callable[..., Any] | None = None,
    environment: type[Environment] | str | None = None,
    group_size: int | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    system_prompt: str | None = None,
    seed: int | None = None,
    settings: Sequence[str] = (),
    model: str | Path | None = None,
    tokens: bool | None = None,
    min_weight_version: int = 0,
    api_key: str | None = None,
    tls_ca: str | Path | None = None,
    store: str | Path | None = None,
) -> Episodes:
    """Run every task `group_size` times against an engine, and give the episodes as they finish.

    Parameters:
      tasks: a JSONL file, dicts, a pandas frame or a Hugging Face dataset, with a `prompt` each.
      engine: the address of an OpenAI-compatible server, or of a pool; `api_key` is its key or token.
      reward: a function, `def score(prompt, completion, **columns)`.
      environment: a class in its place, a kind of `env_config.kinds`, or `FILE.py:NAME`. Functions and
        classes run in this process. Without either, each task names its `env`, which else does not count.
      settings: other words of a run's configuration, `key=value`; what is None is as that has it.
      model: the tokenizer's folder or hub name, where the path that the engine states is not here; of a
        server that tells no tokens, the model to ask for.
      tokens: False does without token ids, True insists on them; None takes them where the server tells them.
      min_weight_version: the oldest weights that may sample; requests to a pool wait for engines with them.
      store: a folder that keeps what has finished. The same call goes on with it, and gives all of it.

    Raises ConfigError and UsageError at once for what is wrong here. Iterating raises RetryLater where the
    engine does not answer, or does no longer: with a store, the same call then goes on.
    """
    if reward is not None and environment is not None:
        raise ConfigError("reward and environment: give one of them")
    if not engine.startswith(("http://", "https://")):
        raise ConfigError(f"engine={engine}: expected http://HOST:PORT")
    words = {
        "rollout.group_size": group_size,
        "policy_config.temperature": temperature,
        "policy_config.max_new_tokens": max_tokens,
        "policy_config.system_prompt": system_prompt,
        "seed": seed,
        "env_config.default_env": environment if isinstance(environment, str) else "",
    }
    folder = None if store is None else Path(store).expanduser().absolute()
    config = _configuration(
        {name: value for name, value in words.items() if value is not None}, settings, folder
    )
    own = _environment_of(reward, environment)
    if own is not None:
        env_config = config.env_config
        kinds = {**env_config.kinds, own.__name__: f"{own.__module__}:{own.__name__}"}
        changed = env_config.model_copy(update={"kinds": kinds, "default_env": own.__name__})
        config = config.model_copy(update={"env_config": changed})
    loaded = tasks_of(tasks, config.env_config)
    if reward is not None or environment is not None:
        loaded = [replace(task, env=config.env_config.default_env) for task in loaded]
    environments = Environments(config.env_config, {} if own is None else {own.__name__: own})
    environments.check({task.env for task in loaded}, loaded)
    address = EngineAddress(
        engine,
        api_key,
        None if tls_ca is None else Path(tls_ca),
        None if model is None else str(model),
        tokens,
    )
    sample = Sample(sample_episodes(loaded, split=SPLIT, iteration=ITERATION, config=config))
    return Episodes(_Collection(config, sample, environments, address, folder, min_weight_version))


def _configuration(named: dict[str, Any], settings: Sequence[str], folder: Path | None) -> Config:
    overrides = [parse_override(word, "settings") for word in settings]
    named = {"env_config.train_tasks_rollout_size": -1, "rollout.completion_threshold": 1.0} | named
    given = {override.name for override in overrides}
    overrides += [
        Override(
            Kind.SET, name, str(value), f"{name}={value}", "collect", name, is_literal=isinstance(value, str)
        )
        for name, value in named.items()
        if name not in given
    ]
    here = Path.cwd()
    composed = compose_config(overrides, data_path=here, log_path=folder or here, num_gpus=0)
    if composed.config.rollout.reward == "judge":
        raise ConfigError(
            "rollout.reward=judge: a run judges with a model; here, ask it in a reward function"
        )
    return composed.config


def _environment_of(
    reward: Callable[..., Any] | None, environment: type[Environment] | str | None
) -> type[Environment] | None:
    """Return the class that lives in this process; None where the configuration names one."""
    if environment is not None and not isinstance(environment, str):
        if problem := problem_with(environment):
            raise ConfigError(f"environment: {problem}")
        return environment
    if reward is None:
        return None
    if not inspect.isfunction(reward):
        raise ConfigError(
            f"reward is {type(reward).__name__}; write def score(prompt, completion, **columns)"
        )
    try:
        return environment_of(reward)
    except ValueError as error:
        raise ConfigError(f"reward: {error}") from None


class _Collection:
    """All that `collect` was asked for; each run of it goes through the episodes once."""

    def __init__(
        self,
        config: Config,
        sample: Sample,
        environments: Environments,
        address: EngineAddress,
        folder: Path | None,
        min_weight_version: int,
    ) -> None:
        self._config = config
        self._sample = sample
        self._environments = environments
        self._address = address
        self._min_weight_version = min_weight_version
        model = ResolvedModel(address.model or config.model.base_model, 0)
        settings = deciding_values(config, SPLIT, model)
        self._store = None if folder is None else EpisodeStore(folder, sample, settings)

    async def run_groups(self, give: Give[tuple[Trajectory, ...]]) -> None:
        begun: dict[tuple[str, int], dict[int, Trajectory]] = {}

        async def add(episode: Trajectory) -> None:
            key = episode.key
            group = begun.setdefault((key.task_id, key.group), {})
            group[key.attempt] = episode
            if len(group) == self._config.rollout.group_size:
                del begun[key.task_id, key.group]
                await give(tuple(group[attempt] for attempt in sorted(group)))

        await self.run(add)

    async def run(self, give: Give[Trajectory]) -> None:
        """Give every episode: those in the store first, then the others as they finish."""
        ledger = Ledger(self._sample)
        if self._store is not None and self._store.is_complete:
            await self._give_recorded(self._store, ledger, give)
            return
        async with AsyncExitStack() as stack:
            writer = _Writer(give)
            engine, chat = await self._address.connect(self._config, stack)
            if self._min_weight_version and not engine.served.is_pool:
                raise ConfigError("min_weight_version: only a pool knows the versions of its engines")
            if isinstance(chat, ChatTokenizer):
                prompt = self._sample.specs[0].task.prompt
                await check_tokens(engine, chat, self._config, prompt)
            if self._store is not None:
                stack.enter_context(sole_master(self._store.paths, SPLIT, ITERATION))
                recorded = await self._give_recorded(self._store, ledger, give)
                shard = RankShard(
                    self._store.paths,
                    self._header(engine.served.root, engine.weight_version),
                    ledger,
                    rank=0,
                    is_sole=True,
                    fsync=self._config.rollout.fsync,
                )
                writer.shard = await stack.enter_async_context(shard)
                await self._store.go_on(shard, episodes=recorded)
            reasons = await self._collect(engine, chat, ledger, writer, stack)
            if self._store is not None and writer.shard is not None:
                await self._store.finish(writer.shard)
        if reasons:
            log.warning("episodes without a reward: %s", "; ".join(reasons))

    async def _give_recorded(self, store: EpisodeStore, ledger: Ledger, give: Give[Trajectory]) -> int:
        """Give what is on the disk; returns how many episodes that were."""
        count, episodes = 0, store.recorded()
        while (episode := await asyncio.to_thread(next, episodes, None)) is not None:
            ledger.record(episode.key)
            count += 1
            await give(episode)
        return count

    def _header(self, model: str, weight_version: int) -> ShardHeader:
        return ShardHeader(
            run_id=RUN_ID,
            split=SPLIT,
            iteration=ITERATION,
            seed=self._config.seed,
            model=model,
            weight_version=weight_version,
            sample_digest=self._sample.digest,
            created_at=time.time(),
        )

    async def _collect(
        self,
        engine: EngineClient,
        chat: ChatTokenizer | TextChat,
        ledger: Ledger,
        writer: "_Writer",
        stack: AsyncExitStack,
    ) -> list[str]:
        """Run what is not recorded; returns the commonest reasons of episodes without a reward."""
        config, rollout = self._config, self._config.rollout
        gate, reasons = EngineGate(rollout.max_vllm_sessions), FailureReasons()
        policy = policy_of(
            config,
            SPLIT,
            engine=engine,
            chat=chat,
            gate=gate,
            lengths=ResponseLengths() if engine.served.is_pool else None,
            tool_format=self._tool_format(chat),
            min_weight_version=self._min_weight_version,
        )
        await stack.enter_async_context(self._environments)
        setup = episode_setup(config, SPLIT, policy, self._environments)
        if self._store is not None:
            setup = replace(setup, images=self._store.paths.images)

        def count(episode: Trajectory) -> None:
            if episode.failure is not None:
                reasons.add(episode.failure)

        collector = Collector(
            collect_settings(config, SPLIT),
            left=ledger.left,
            start_episode=lambda spec: Episode(spec, setup),
            writer=writer,
            on_recorded=count,
            whole=lambda: len(self._sample),
        )
        rule = LimitRule(rollout.min_vllm_sessions, rollout.max_vllm_sessions)
        try:
            async with asyncio.TaskGroup() as jobs:
                following = jobs.create_task(
                    follow_pressure(gate, rule, engine.pressure), name="follow pressure"
                )
                await collector.collect(_Groups(self._sample.groups(ledger.missing())))
                following.cancel()
        except BaseExceptionGroup as group:
            raise deliberate(group) from None
        return reasons.commonest()

    def _tool_format(self, chat: ChatTokenizer | TextChat) -> ToolFormat | None:
        if not self._config.policy_config.has_tool_calls:
            return None
        if isinstance(chat, TextChat):
            raise ConfigError("policy_config.action_format=tool_calls: needs an engine that tells tokens")
        return tool_format_of(chat)


class _Writer:
    """Records an episode where there is a store, and hands it over once it is durable."""

    def __init__(self, give: Give[Trajectory]) -> None:
        self.shard: RankShard | None = None
        self._give = give

    async def append(self, trajectory: Trajectory) -> Trajectory:
        recorded = trajectory if self.shard is None else await self.shard.append(trajectory)
        await self._give(recorded)
        return recorded


class _Groups:
    """The groups of a sample as the chunks of a collector: all are there from the start."""

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self._left = deque(ClaimedChunk(number, tuple(group)) for number, group in enumerate(groups))

    async def next_chunk(self) -> ClaimedChunk | None:
        return self._left.popleft() if self._left else None

    async def more_or_closed(self) -> bool:
        return False

    def report(self, chunk_id: int) -> None:
        """Note nothing: nobody else would run a chunk."""
