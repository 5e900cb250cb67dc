"""The master samples other groups while the rollout runs, and goes on with them after whatever happened."""

import asyncio
import json
import logging
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl_agent.errors import RetryLater
from rl_agent.paths import RunPaths
from rl_agent.rollout import master_rollout
from rl_agent.rollout.sample import Sample
from rl_agent.rollout.trajectories import growing
from tests.integration.trainer.settings import loss_settings
from tests.unit.rollout import master_rollouts
from tests.unit.rollout.master_rollouts import HEADER, FakeRollout, FakeWork, Part, assignment_of
from tests.unit.rollout.test_resample import ASKED, EQUAL, MIXED, SIZE, episode, make_sample
from tests.unit.rollout.trajectories_made import seeds_of, write_shard


class Dealing(FakeWork):
    """Hands what is published to whoever collects."""

    def __init__(self, others=()):
        super().__init__(others)
        self.published: list[int] = []
        self.done: set[int] = set()
        self.changed = asyncio.Event()

    async def publish(self, groups, *, digest, weight_version):
        self.is_published = True
        self.published += [index for group in groups for index in group if index not in self.published]
        self.changed.set()

    async def all_complete(self):
        while not self.done.issuperset(self.published):
            self.changed.clear()
            await self.changed.wait()
        return [*([Part(self.shard, 0)] if self.shard else []), *self.others]

    def finish(self, index):
        self.done.add(index)
        self.changed.set()

    def close(self):
        assert self.done.issuperset(self.published)


class RewardedRollout(FakeRollout):
    """Records what is published through the real file; `rewards` are those of a group, by its number."""

    def __init__(self, work, shard, ledger, rewards, *, elsewhere=(), last=None, dies_at=None):
        super().__init__(work, shard, ledger)
        self._rewards, self._elsewhere, self._last, self._dies_at = rewards, elsewhere, last, dies_at

    async def collect(self, source):
        recorded = 0
        while True:
            for index in self._todo():
                group, attempt = divmod(index, SIZE)
                if group not in self._elsewhere:
                    if recorded == self._dies_at:
                        raise RetryLater("the engine is gone")
                    trajectory = episode(group, attempt, self._rewards.get(group, MIXED)[attempt])
                    await self._shard.append(trajectory)
                    self.collector.ended[trajectory.status] += 1
                    recorded += 1
                self._work.finish(index)
            await asyncio.sleep(0.01)

    def _todo(self):
        todo = [index for index in self._work.published if index not in self._work.done]
        is_held = self._last is not None and max(self._work.published) < self._last[1] * SIZE
        return [index for index in todo if not is_held or index // SIZE != self._last[0]]

    def record(self):
        return {"iteration": 1}


@pytest.fixture
def paths(tmp_path: Path, monkeypatch) -> RunPaths:
    monkeypatch.setattr(master_rollout, "_LOOK_S", 0.02)
    return RunPaths(tmp_path)


async def run_master(paths, rewards, *, work=None, sample=None, resume=False, **changes):
    grpo = SimpleNamespace(loss=loss_settings(drop_uninformative=True))
    return await master_rollouts.run_master(
        paths,
        work=work or Dealing(),
        sample=sample or make_sample(),
        assignment=assignment_of(paths, resume, group_size=SIZE, is_streaming=True, grpo=grpo),
        rollout_type=RewardedRollout,
        rewards=rewards,
        **changes,
    )


def groups(paths: RunPaths) -> Counter[int]:
    return Counter(seeds_of(paths))


def numbers(paths: RunPaths) -> tuple[int, int]:
    line = json.loads(paths.metrics.read_text().splitlines()[-1])
    return line["train/uninformative_groups"], line["train/resampled_groups"]


def account_of(number: int) -> str:
    return f"submitted={number} completed={number} failed=0 timed_out=0 abandoned=0"


async def test_enough_groups_are_sampled_and_all_numbers_count_them_alone(paths, caplog):
    caplog.set_level(logging.INFO)
    account, work = await run_master(paths, {1: EQUAL, 2: EQUAL, 4: EQUAL})

    assert account == account_of(7 * SIZE)
    assert groups(paths) == dict.fromkeys(range(7), SIZE)
    assert sorted(work.published) == list(range(7 * SIZE))
    assert numbers(paths) == (3, 3)
    assert "3 of 7 groups teach nothing, 3 were sampled in place of others" in caplog.text
    assert "allows no more" not in caplog.text


async def test_where_the_limit_is_reached_the_phase_ends_and_says_so(paths, caplog):
    caplog.set_level(logging.INFO)
    account, _ = await run_master(paths, dict.fromkeys(range(6), EQUAL), sample=make_sample(groups=6))

    assert account == account_of(6 * SIZE)
    assert numbers(paths) == (6, 2)
    assert "trainer.max_num_gen_batches allows no more" in caplog.text


async def test_another_group_is_sampled_while_the_last_one_still_runs(paths):
    """It ends only once the group for the first one has been given out."""
    await run_master(paths, {0: EQUAL}, last=(ASKED - 1, ASKED))
    assert groups(paths) == dict.fromkeys(range(ASKED + 1), SIZE)


async def test_groups_that_other_ranks_have_recorded_count_as_well(paths):
    file = write_shard(paths.checkpoint_shard("train", 1, rank=1), HEADER, episode(1, 0), episode(1, 1))
    hidden = file.rename(file.with_name("begun-later"))

    class Later(Dealing):
        async def publish(self, groups, **terms):
            if hidden.exists():
                hidden.rename(file)
            await super().publish(groups, **terms)

    work = Later([Part(file.name.removesuffix(".checkpoint"), 1)])
    account, _ = await run_master(paths, {}, work=work, num_nodes=2, elsewhere=(1,))
    assert account == account_of((ASKED + 1) * SIZE)
    assert groups(paths) == dict.fromkeys(range(ASKED + 1), SIZE)


async def test_a_resume_runs_what_is_left_of_what_was_asked_for(paths):
    """One group of the reserve has begun, and two of those recorded are left out."""
    recorded = [episode(group, n) for group in (0, 2) for n in range(SIZE)]
    write_shard(paths.checkpoint_shard("train", 1), HEADER, *recorded, episode(4, 1))
    account, work = await run_master(paths, {}, resume=True)

    assert work.published == [2, 3, 6, 7, 8, 10, 11]
    assert account == account_of((ASKED + 2) * SIZE)
    assert groups(paths) == dict.fromkeys(range(ASKED + 2), SIZE)
    assert numbers(paths) == (2, 2)


@pytest.mark.parametrize("dies_at", range(0, 7 * SIZE, 3))
async def test_a_lost_engine_costs_no_group_and_none_is_sampled_twice(paths, dies_at):
    rewards, work = {0: EQUAL, 3: EQUAL, 5: EQUAL}, Dealing()
    with pytest.raises(RetryLater):
        await run_master(paths, rewards, work=work, dies_at=dies_at, num_nodes=2)
    account, _ = await run_master(paths, rewards, work=work, num_nodes=2)

    assert account == account_of(7 * SIZE)
    assert sorted(work.published) == list(range(7 * SIZE))
    assert groups(paths) == dict.fromkeys(range(7), SIZE)


@pytest.mark.parametrize("dies_at", [None, 5])
async def test_episodes_written_or_counted_here_are_not_read_again(paths, monkeypatch, dies_at):
    def read_from(path, *arguments, **how):
        # A look between a file's creation and the return of the thread that created it sees its header.
        assert path.read_bytes().count(b"\n") <= 1, f"{path} is read again"
        return iter(())

    monkeypatch.setattr(growing, "read_from", read_from)
    rewards, work = {0: EQUAL, 3: EQUAL}, Dealing()
    if dies_at is not None:
        with pytest.raises(RetryLater):
            await run_master(paths, rewards, work=work, dies_at=dies_at)
    await run_master(paths, rewards, work=work)
    assert numbers(paths) == (2, 2)


async def test_an_episode_that_two_files_hold_counts_once(paths):
    for rank in (0, 1):
        file = paths.checkpoint_shard("train", 1, rank=rank)
        write_shard(file, HEADER, episode(0, 0), *([episode(0, 1)] if rank else []))
    await run_master(paths, {0: EQUAL}, resume=True, num_nodes=2)
    assert groups(paths) == dict.fromkeys(range(ASKED + 1), SIZE)
    assert numbers(paths) == (1, 1)


async def test_without_a_reserve_there_is_nothing_to_tell(paths):
    sample = Sample(make_sample().specs[: ASKED * SIZE])
    await run_master(paths, dict.fromkeys(range(ASKED), EQUAL), sample=sample)
    assert groups(paths) == dict.fromkeys(range(ASKED), SIZE)
    assert json.loads(paths.metrics.read_text()) == {"iteration": 1, "train/submitted": ASKED * SIZE}
