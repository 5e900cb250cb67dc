"""A master of a rollout whose cluster, engine and episodes cost nothing; its files are real."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from rl_agent.paths import RunPaths
from rl_agent.rollout.collector.failures import TracebackLog
from rl_agent.rollout.head_start import HeadStartQueue
from rl_agent.rollout.master_rollout import MasterRollout
from rl_agent.rollout.rank_shard import RankShard
from rl_agent.rollout.sample import Ledger
from rl_agent.types import Status
from tests.unit.rollout.trajectories_made import make_header, make_trajectory, sample_of, write_shard

SIZE = 12
HEADER = replace(make_header(), run_id="run", sample_digest="abc", weight_version=0, attempt=2)
CONDITIONS = {"policy_config.temperature": 1.0}
COLDER = {"policy_config.temperature": 0.7}
OTHER_RUN = replace(HEADER, run_id="another")


def make_sample(size=SIZE):
    return sample_of(map(make_trajectory, range(size)))


def assignment_of(paths, resume, *, must_exist=False, group_size=1, **config):
    config = SimpleNamespace(paths=paths, rollout=SimpleNamespace(group_size=group_size), **config)
    plan = SimpleNamespace(run_id="run", config=config)
    return SimpleNamespace(plan=plan, config=config, resume=resume, resume_must_exist=must_exist)


@dataclass
class Part:
    name: str
    rank: int
    cut_bytes: int | None = None


class FakeWork:
    """Hands everything published to the master at once; `others` are files of other ranks at the end."""

    def __init__(self, others=()):
        self.others = list(others)
        self.shard = None
        self.is_published = False
        self.published = None
        self.on_lost = None
        self.complete = asyncio.Event()
        self.is_closed = False

    async def publish(self, groups, *, digest, weight_version):
        self.is_published = True
        self.published = [index for group in groups for index in group]
        self.terms = (digest, weight_version)

    async def all_complete(self):
        await self.complete.wait()
        own = [Part(self.shard, 0)] if self.shard else []
        return own + self.others

    def set_shard(self, name):
        self.shard = name

    def close(self):
        self.is_closed = True


class FakeRollout:
    """Records what is published (but `skipped`) through the real file; counts like the real one."""

    def __init__(self, work, shard, ledger, skipped=(), error=None, status=Status.COMPLETED):
        self._status = status
        self.collector = SimpleNamespace(ended=Counter())
        self.tracebacks = TracebackLog(shard.folder.parent / "environments.log")
        self._work, self._shard, self._ledger = work, shard, ledger
        self._skipped, self._error = skipped, error

    async def collect(self, queue):
        for index in self._work.published:
            reward = 1.0 if self._status is Status.COMPLETED else None
            episode = make_trajectory(index, reward=reward, status=self._status)
            if self._status is Status.FAILED:
                self.tracebacks.add(str(episode.key), episode.failure, ValueError("of a user"))
            if index not in self._skipped and not self._ledger.contains(episode.key):
                await self._shard.append(episode)
                self.collector.ended[episode.status] += 1
        if self._error:
            raise self._error
        self._work.complete.set()
        await asyncio.Event().wait()

    def keep_lengths(self):
        pass

    def commonest_failures(self):
        return ["12 x EnvironmentFailure: reset failed"] if self._status is Status.FAILED else []

    def count(self, recorded):
        number = 0
        for episode in recorded:
            number += 1
            if self._ledger.record(episode.key):
                self.collector.ended[episode.status] += 1
        return number

    def record(self):
        return {"iteration": 1, "episodes": self.collector.ended.total()}


async def run_master(
    paths,
    *,
    resume=False,
    num_nodes=1,
    work=None,
    must_exist=True,
    sample=None,
    assignment=None,
    rollout_type=FakeRollout,
    begins_with=CONDITIONS,
    **changes,
):
    work, sample = work or FakeWork(), sample or make_sample()
    assignment = assignment or assignment_of(paths, resume, must_exist=must_exist, is_streaming=False)
    ledger, queue = Ledger(sample), HeadStartQueue()
    queue.order(work)
    own = {"rank": 0, "is_sole": num_nodes == 1, "fsync": False, "on_begun": queue.set_shard}
    async with asyncio.timeout(10), RankShard(paths, HEADER, ledger, **own) as shard:
        rollout = rollout_type(work, shard, ledger, **changes)
        counts = await MasterRollout(
            assignment, sample, ledger, HEADER, begins_with, queue=queue, rollout=rollout, shard=shard
        ).run()
    return str(counts), work


def write(shard: Path, *indices: int, header=HEADER, torn=b"") -> Path:
    return write_shard(shard, header, *map(make_trajectory, indices), torn=torn)


def manifest(paths: RunPaths) -> dict[str, dict]:
    entries = json.loads(paths.manifest("train", 1).read_bytes())
    return {entry.pop("file").partition("iteration1")[2]: entry for entry in entries}


def names(paths: RunPaths) -> list[str]:
    folder = paths.trajectory_dir("train")
    return sorted(entry.name.partition("iteration1")[2] for entry in folder.iterdir())
