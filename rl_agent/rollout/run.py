"""One rollout of one iteration, on one node or many: the parts put together.

    every rank   plan ─► sample ─► engine (which model?) ─► chunk after chunk ─► a file of its own
    master       besides: publishes the chunks, and ends the iteration (`rollout.lead`)

One node is the case of one rank. A rank that dies, leaves or is slow has its chunks run by others. If the
engine is lost (RetryLater) the same call, made again, goes on with what the rank has claimed.
"""

import os
import time
from contextlib import AsyncExitStack
from typing import Protocol

from rl_agent.agent.chat import ChatTokenizer
from rl_agent.config import Config, Plan
from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.model import ResolvedModel, resolve_model
from rl_agent.engine.served import version_served
from rl_agent.engine.wire import ServedModel
from rl_agent.env.registry import EnvironmentRegistry
from rl_agent.errors import ConfigError, MachineError, RetryLater
from rl_agent.paths import RunPaths
from rl_agent.pool import run_pool
from rl_agent.reward.judge import ModelJudge
from rl_agent.rollout import conditions, lead, takeover
from rl_agent.rollout.collector.collect import account
from rl_agent.rollout.conditions import Conditions, conditions_of
from rl_agent.rollout.rank_rollout import Membership, RankRollout
from rl_agent.rollout.rank_shard import RankShard
from rl_agent.rollout.sample import Assignment, Ledger, Sample, sample_of
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import Part, read_parts
from rl_agent.rollout.trajectories.shard import ShardHeader
from rl_agent.types import Phase


class Work(lead.Work, Protocol):
    """The chunks of a phase, as a rollout needs them of `cluster.work.Work`."""

    @property
    def sample_digest(self) -> str | None:
        """Of the sample that the chunks are of; known once there is more to claim."""

    @property
    def weight_version(self) -> int | None: ...
    def set_shard(self, name: str) -> None: ...


class Member(Membership, Protocol):
    """A node of the run, as a rollout needs it of `cluster.member.Member`."""

    def work(self, iteration: int, phase: Phase) -> Work: ...


def identify(served: ServedModel, config: Config) -> int:
    """Weight version of the served model. Raises ConfigError if it is not the one this run wants.

    The run's own pool says its version itself, which may be ahead of the newest folder.
    """
    wanted = resolve_model(config)
    if config.is_pooled and served.weight_version is not None:
        if served.weight_version < wanted.weight_version:
            raise RetryLater(
                f"the pool is at weight version {served.weight_version}, not at {wanted.weight_version}"
            )
        return served.weight_version
    version = version_served(served.root, config)
    if version is None or version != wanted.weight_version:
        raise MachineError(
            f"the engine at {config.engine.base_url} serves {served.root}, this run wants {wanted.path};"
            " stop that server, or set engine.port or engine.url"
        )
    return version


async def run_rollout(assignment: Assignment, member: Member) -> str:
    """Collect this rank's share of an iteration; on the master until the iteration is complete.

    Returns the account in one line: the master's of the whole iteration, another's of what it did. Raises
    ConfigError, RetryLater if the engine or the membership is gone, StoreError if the disk takes no more.
    """
    config, paths = assignment.config, assignment.config.paths
    registry = EnvironmentRegistry(config.env_config)
    sample = sample_of(assignment, registry)
    ledger = Ledger(sample)
    wanted = resolve_model(config)
    header = _header(assignment, sample, wanted)
    chat = ChatTokenizer.load(wanted.path, config.model.chat_template_kwargs)
    work = member.work(assignment.iteration, assignment.phase)
    async with AsyncExitStack() as stack:
        if member.is_master:
            stack.enter_context(takeover.sole_master(paths, header.split, header.iteration))
        engine = await stack.enter_async_context(_engine_client(assignment.plan))
        await stack.enter_async_context(registry)
        judge = None
        if config.rollout.reward == "judge":
            judge = await stack.enter_async_context(ModelJudge(config.openai_config, paths.judge_cache))
        shard = RankShard(
            paths,
            header,
            ledger,
            rank=member.rank,
            is_sole=member.is_master and assignment.plan.command.num_nodes == 1,
            fsync=config.rollout.fsync,
            on_begun=work.set_shard,
        )
        await stack.enter_async_context(shard)
        rollout = RankRollout(
            assignment,
            member,
            ledger,
            engine=engine,
            chat=chat,
            registry=registry,
            shard=shard,
            judge=judge,
        )
        begins_with = conditions_of(config, assignment.split, sample)
        if member.is_master:
            master = lead.Lead(
                assignment, sample, ledger, header, begins_with, work=work, rollout=rollout, shard=shard
            )
            account_line = await master.run()
            rollout.keep_lengths()
            return account_line
        if await work.more_or_closed():
            _check_agreement(header, work, paths, begins_with)
        return await _follow(work, rollout, shard)


async def _follow(work: Work, rollout: RankRollout, shard: RankShard) -> str:
    """What every rank but the master does."""
    if work.shard is not None:  # the engine was lost on the way
        begun = shard.folder / work.shard
        episodes = rollout.count(read_parts([Part(begun)], TRAJECTORY))
        await shard.resume(begun, episodes=episodes)
    await rollout.collect(work)
    await shard.close()
    return account(rollout.collector.submitted, rollout.collector.ended)


def _check_agreement(header: ShardHeader, work: Work, paths: RunPaths, mine: Conditions) -> None:
    """Raises ConfigError if the master gives out another sample, or wants another model."""
    where = f"{header.split} iteration {header.iteration}"
    if work.sample_digest != header.sample_digest:
        masters = conditions.read(paths, header.run_id, header.split, header.iteration)
        is_known = masters is not None and masters.sample == work.sample_digest
        difference = f": it has {masters.difference(mine)}" if masters is not None and is_known else ""
        raise ConfigError(
            f"{where}: this node samples other episodes than the master{difference}; give both the same task"
            " files, seed, sizes and step limits"
        )
    if work.weight_version != header.weight_version:
        raise ConfigError(
            f"{where}: the master wants weight version {work.weight_version}, this node would serve"
            f" {header.weight_version}; both must see the same {header.model}"
        )


def _engine_client(plan: Plan) -> EngineClient:
    """To the node's engine, or to the pool, which is used like one."""
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
    return EngineClient(url, settings, identify=lambda served: identify(served, config))


def _header(assignment: Assignment, sample: Sample, model: ResolvedModel) -> ShardHeader:
    return ShardHeader(
        run_id=assignment.plan.run_id,
        split=assignment.split,
        iteration=assignment.iteration,
        seed=assignment.config.seed,
        model=model.path,
        weight_version=model.weight_version,
        sample_digest=sample.digest,
        created_at=time.time(),
        attempt=assignment.plan.attempt,
    )
