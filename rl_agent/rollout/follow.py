"""The side of a rollout that every rank but the master has: agree with the master, then collect."""

from rl_agent.cluster.member.chunk_queue import ChunkQueue
from rl_agent.errors import ConfigError
from rl_agent.rollout.head_start import HeadStartQueue
from rl_agent.rollout.rank_rollout import RankRollout
from rl_agent.rollout.rank_shard import RankShard
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.manifest import Part, read_parts
from rl_agent.rollout.trajectories.shard import ShardHeader
from rl_agent.types import EpisodeCounts


async def follow(
    header: ShardHeader,
    *,
    may_differ: bool,
    queue: HeadStartQueue,
    rollout: RankRollout,
    shard: RankShard,
) -> EpisodeCounts:
    """Collect this rank's share; returns its counts. Raises like `run.run_rollout`.

    With `may_differ` the weight versions of the master and of this node may.
    """
    work = await queue.ordered()
    queue.open()
    if await work.more_or_closed():
        _check_agreement(header, work, may_differ=may_differ)
    if work.shard is not None:  # the engine was lost on the way
        begun = shard.folder / work.shard
        episodes = rollout.count(read_parts([Part(begun)], TRAJECTORY))
        await shard.resume(begun, episodes=episodes)
    await rollout.collect(queue)
    await shard.close()
    return EpisodeCounts(rollout.collector.submitted, rollout.collector.ended)


def _check_agreement(header: ShardHeader, work: ChunkQueue, *, may_differ: bool) -> None:
    """Refuse another sample or, unless it may differ, another model than the master's. Raises ConfigError."""
    where = f"{header.split} iteration {header.iteration}"
    if work.sample_digest != header.sample_digest:
        raise ConfigError(
            f"{where}: this node samples other episodes than the master; start both from the same release"
        )
    if work.weight_version != header.weight_version and not may_differ:
        raise ConfigError(
            f"{where}: the master wants weight version {work.weight_version}, this node would serve"
            f" {header.weight_version}; both must see the same {header.model}"
        )
