"""One rollout of one iteration: the parts put together.

plan ─► sample ─► engine (which model?) ─► shard (new or resumed) ─► collect ─► complete ─► metrics
"""

import asyncio
import hashlib
import heapq
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rl_agent.agent.chat import ChatTokenizer
from rl_agent.config import Config, Plan
from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.model import ResolvedModel, resolve_model, version_of_root
from rl_agent.engine.wire import Sampling, ServedModel
from rl_agent.env.registry import EnvironmentRegistry
from rl_agent.errors import ConfigError, deliberate
from rl_agent.monitor import metrics as metrics_file
from rl_agent.monitor import progress
from rl_agent.reward.judge import ModelJudge
from rl_agent.rollout.collect import Collector, CollectSettings
from rl_agent.rollout.conversation import Policy
from rl_agent.rollout.episode import Episode, EpisodeSetup
from rl_agent.rollout.limit import EngineGate, LimitRule, follow_pressure
from rl_agent.rollout.metrics import RolloutMetrics
from rl_agent.rollout.stop_rule import StopRule
from rl_agent.rollout.store import ShardHeader, ShardWriter, read_shard
from rl_agent.tasks.load import load_tasks
from rl_agent.tasks.sample import sample_episodes
from rl_agent.types import EpisodeSpec, Split, Status


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the command line asked for."""

    plan: Plan
    split: Split
    iteration: int
    resume: bool

    @property
    def config(self) -> Config:
        return self.plan.config


def sample_of(assignment: Assignment, registry: EnvironmentRegistry) -> list[EpisodeSpec]:
    """The episodes of this iteration. Raises ConfigError if a task or its environment is unusable."""
    config = assignment.config
    path = config.env_config.tasks_file(assignment.split, config.data_path)
    tasks = load_tasks(path, config.env_config)
    registry.check(task.env for task in tasks)
    return sample_episodes(tasks, split=assignment.split, iteration=assignment.iteration, config=config)


def digest_of(specs: Sequence[EpisodeSpec]) -> str:
    """Names a sample: equal where a resume runs the very same episodes."""
    digest = hashlib.blake2b(digest_size=16)
    for spec in specs:
        digest.update(f"{spec.key} {spec.seed} {spec.max_steps} {spec.task.prompt}\n".encode())
    return digest.hexdigest()


def identify(served: ServedModel, config: Config) -> int:
    """Weight version of the served model. Raises ConfigError if it is not the one this run wants."""
    wanted = resolve_model(config)
    version = version_of_root(served.root, config)
    if version is None or version != wanted.weight_version:
        raise ConfigError(
            f"the engine at {config.engine.base_url} serves {served.root}, this run wants {wanted.path};"
            " stop that server, or set engine.port or engine.url"
        )
    return version


async def run_rollout(assignment: Assignment) -> str:
    """Collect the iteration's episodes and complete its shard; returns the account in one line.

    Raises ConfigError, RetryLater if the engine is gone, StoreError if the disk takes no more.
    """
    config = assignment.config
    registry = EnvironmentRegistry(config.env_config)
    specs = sample_of(assignment, registry)
    wanted = resolve_model(config)
    chat = ChatTokenizer.load(wanted.path, config.model.chat_template_kwargs)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(_engine_client(config))
        await stack.enter_async_context(registry)
        judge = None
        if config.rollout.reward == "judge":
            judge = await stack.enter_async_context(
                ModelJudge(config.openai_config, config.paths.judge_cache)
            )
        header = _header(assignment, specs, wanted)
        writer = await stack.enter_async_context(_open_shard(assignment, header))
        rollout = Rollout(assignment, engine, chat, registry, writer, judge)
        await rollout.run(specs)
        # First the numbers: after a kill in between, the phase ends again instead of losing them.
        metrics_file.append(config.paths.metrics, rollout.record())
        await writer.complete()
    return rollout.collector.summary()


def _engine_client(config: Config) -> EngineClient:
    settings = ClientSettings(
        request_timeout_s=config.rollout.request_timeout_s,
        retries=config.rollout.request_retries,
        api_key=os.environ.get(config.engine.api_key_env_var),
    )
    return EngineClient(config.engine.base_url, settings, identify=lambda served: identify(served, config))


def _header(assignment: Assignment, specs: Sequence[EpisodeSpec], model: ResolvedModel) -> ShardHeader:
    return ShardHeader(
        run_id=assignment.plan.run_id,
        split=assignment.split,
        iteration=assignment.iteration,
        seed=assignment.config.seed,
        model=model.path,
        weight_version=model.weight_version,
        sample_digest=digest_of(specs),
        created_at=time.time(),
    )


def _open_shard(assignment: Assignment, header: ShardHeader) -> AbstractAsyncContextManager[ShardWriter]:
    paths, fsync = assignment.config.paths, assignment.config.rollout.fsync
    if assignment.resume:
        return ShardWriter.resume(paths, header.split, header.iteration, fsync=fsync)
    return ShardWriter.create(paths, header, fsync=fsync)


class Rollout:
    """The collector with what watches it; used once."""

    def __init__(
        self,
        assignment: Assignment,
        engine: EngineClient,
        chat: ChatTokenizer,
        registry: EnvironmentRegistry,
        writer: ShardWriter,
        judge: ModelJudge | None,
    ) -> None:
        config, rollout = assignment.config, assignment.config.rollout
        self._assignment = assignment
        self._engine = engine
        self._writer = writer
        self._started = time.monotonic()
        self._limit_rule = LimitRule(rollout.min_vllm_sessions, rollout.max_vllm_sessions)
        self._gate = EngineGate(rollout.max_vllm_sessions)
        self._metrics = RolloutMetrics(assignment.split, success_reward=config.trainer.reward_threshold)
        self._judge = judge
        self._tokens_before = 0
        self._done_before = 0
        policy = Policy(
            engine=engine,
            gate=self._gate,
            chat=chat,
            sampling=_sampling(config, assignment.split),
            system_prompt=config.policy_config.system_prompt,
            chat_template_kwargs=config.model.chat_template_kwargs,
        )
        setup = EpisodeSetup(
            split=assignment.split,
            iteration=assignment.iteration,
            model=engine.served.root,
            policy=policy,
            create_environment=registry.create,
            step_timeout_s=rollout.step_timeout_s,
            episode_timeout_s=rollout.episode_timeout_s,
            images=config.paths.images,
            rank=assignment.plan.command.rank,
        )
        self.collector = Collector(
            CollectSettings(
                server_size=config.env_config.server_size,
                stop_rule=StopRule(rollout.completion_threshold, rollout.completion_grace_period),
                judge_timeout_s=rollout.judge_timeout_s,
            ),
            start_episode=lambda spec: Episode(spec, setup),
            writer=writer,
            judge=judge,
            on_recorded=self._metrics.add,
        )

    async def run(self, specs: Sequence[EpisodeSpec]) -> None:
        """Collect what is not recorded yet. Raises like `run_rollout`."""
        recorded = await self._take_over(specs)
        left = [spec for spec in specs if spec.key not in self._writer.completed]
        try:
            async with progress.shown(self.snapshot), asyncio.TaskGroup() as jobs:
                following = follow_pressure(self._gate, self._limit_rule, self._engine.pressure)
                follower = jobs.create_task(following, name="follow engine pressure")
                try:
                    await self.collector.collect(left, recorded=recorded, total=len(specs))
                finally:
                    follower.cancel()
        except BaseExceptionGroup as group:
            raise deliberate(group) from None

    async def _take_over(self, specs: Sequence[EpisodeSpec]) -> Counter[Status]:
        """Count what a resumed shard holds. Raises ConfigError if it holds another sample."""
        header, config = self._writer.header, self._assignment.config
        if header.sample_digest != digest_of(specs):
            raise ConfigError(
                f"--resume: the {header.split} sample of iteration {header.iteration} is not the one that was"
                " begun; undo the change of seed, tasks, sizes or step limits, or start without --resume"
            )
        if header.weight_version != self._engine.weight_version:
            raise ConfigError(
                f"--resume: iteration {header.iteration} was begun with weight version"
                f" {header.weight_version}; the engine has {self._engine.weight_version}"
            )
        if self._writer.completed:
            shard = config.paths.checkpoint_shard(header.split, header.iteration)
            await asyncio.to_thread(self._count_recorded, shard)
        self._tokens_before = self._metrics.total.response_tokens
        self._done_before = len(self._writer.completed)
        return Counter(found.status for found in self._writer.completed.values())

    def _count_recorded(self, shard: Path) -> None:
        for trajectory in read_shard(shard)[1]:
            self._metrics.add(trajectory)

    def record(self) -> dict[str, float | int | str]:
        """This rollout's line of `metrics.jsonl`."""
        split, elapsed_s = self._assignment.split, time.monotonic() - self._started
        tokens = self._metrics.total.response_tokens - self._tokens_before
        numbers = self._metrics.numbers() | {
            f"{split}/engine_tokens_per_s": tokens / elapsed_s,
            f"{split}/engine_idle_share": self._gate.idle_s() / elapsed_s,
            f"{split}/rollout_s": elapsed_s,
        }
        if self._judge is not None:
            usage = asdict(self._judge.usage)
            numbers |= {f"{split}/judge_{name}": value for name, value in usage.items()}
        place = {"time": time.time(), "iteration": self._assignment.iteration, "split": split}
        return {**place, **numbers}

    def snapshot(self) -> progress.Snapshot:
        collector, total = self.collector, self._metrics.total
        completed = collector.ended[Status.COMPLETED]
        slowest = heapq.nlargest(progress.SLOWEST, collector.running.values(), key=Episode.elapsed_s)
        return progress.Snapshot(
            split=self._assignment.split,
            iteration=self._assignment.iteration,
            submitted=collector.submitted,
            done=collector.done,
            running=len(collector.running),
            finishing=collector.finishing,
            at_engine=self._gate.in_use,
            engine_limit=self._gate.limit,
            queued=self._gate.queued,
            not_completed=collector.done - completed,
            reward_mean=total.reward_sum / completed if completed else None,
            response_tokens=total.response_tokens - self._tokens_before,
            done_here=collector.done - self._done_before,
            elapsed_s=time.monotonic() - self._started,
            slowest=tuple(
                progress.Slow(str(episode.spec.key), len(episode.steps), episode.elapsed_s())
                for episode in slowest
            ),
        )


def _sampling(config: Config, split: Split) -> Sampling:
    policy = config.policy_config
    return Sampling(
        temperature=policy.temperature_of(split),
        top_p=policy.top_p,
        top_k=policy.top_k,
        min_p=policy.min_p,
        max_tokens=policy.max_new_tokens,
        seed=config.seed,
    )
