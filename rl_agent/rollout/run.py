"""One rollout of one iteration, on one node or many: the parts put together.

    every rank   plan ─► sample ─► engine (which model?) ─► chunk after chunk ─► a file of its own
    master       besides: publishes the chunks, and ends the iteration (`rollout.master_rollout`)

One node is the case of one rank. A rank that dies, leaves or is slow has its chunks run by others. If the
engine is lost (RetryLater) the same call, made again, goes on with what the rank has claimed.
"""

import time
from contextlib import AsyncExitStack

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.tool_template import tool_format_of
from rl_agent.cluster.member.member import Member
from rl_agent.engine.model import resolve_model
from rl_agent.env.remote.environments import Environments
from rl_agent.judge.judge import ModelJudge
from rl_agent.judge.judge_checks import try_out
from rl_agent.rollout import takeover
from rl_agent.rollout.conditions import Conditions
from rl_agent.rollout.engine_access import check_tokens, engine_client
from rl_agent.rollout.follow import follow
from rl_agent.rollout.master_rollout import MasterRollout
from rl_agent.rollout.rank_rollout import RankRollout
from rl_agent.rollout.rank_shard import RankShard
from rl_agent.rollout.sample import Assignment, Ledger, sample_of
from rl_agent.rollout.trajectories.shard import ShardHeader


async def run_rollout(assignment: Assignment, member: Member) -> str:
    """Collect this rank's share of an iteration; on the master until the iteration is complete.

    Returns the account in one line: the master's of the whole iteration, another's of what it did. Raises
    ConfigError, RetryLater if the engine or the membership is gone, StoreError if the disk takes no more.
    """
    plan, config, paths = assignment.plan, assignment.config, assignment.config.paths
    sample, model = sample_of(assignment), resolve_model(config)
    begins_with = Conditions.of(config, assignment.split, sample, model)
    ledger = Ledger(sample)
    header = ShardHeader(
        run_id=plan.run_id,
        split=assignment.split,
        iteration=assignment.iteration,
        seed=config.seed,
        model=model.path,
        weight_version=model.weight_version,
        sample_digest=sample.digest,
        created_at=time.time(),
        attempt=plan.attempt,
    )
    environments = Environments(config.env_config)
    environments.check_here({spec.task.env for spec in sample.specs})
    chat = ChatTokenizer.load(model.path, config.model.chat_template_kwargs)
    work = member.work(assignment.iteration, assignment.phase)
    async with AsyncExitStack() as stack:
        if member.is_master:
            stack.enter_context(takeover.sole_master(paths, header.split, header.iteration))
        engine = await stack.enter_async_context(engine_client(plan, model))
        await check_tokens(engine, chat, config, sample.specs[0].task.prompt)
        await stack.enter_async_context(environments)
        judge = None
        if config.rollout.reward == "judge":
            judge = await stack.enter_async_context(ModelJudge(config.openai_config, paths.judge_cache))
            tasks = {spec.task.task_id: spec.task for spec in sample.specs}
            await try_out(judge, config.openai_config, tasks.values())
        shard = RankShard(
            paths,
            header,
            ledger,
            rank=member.rank,
            is_sole=member.is_master and plan.command.num_nodes == 1,
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
            environments=environments,
            shard=shard,
            judge=judge,
            tool_format=tool_format_of(chat) if config.policy_config.has_tool_calls else None,
        )
        if member.is_master:
            master_rollout = MasterRollout(
                assignment, sample, ledger, header, begins_with, work=work, rollout=rollout, shard=shard
            )
            return await master_rollout.run()
        return await follow(header, begins_with, paths=paths, work=work, rollout=rollout, shard=shard)
