"""One rank's part of a rollout, with a real collector and file, and nothing else real."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from rl_agent.errors import EngineError, RetryLater
from rl_agent.rollout.collector.lengths import ResponseLengths
from rl_agent.rollout.rank_rollout import RankRollout
from rl_agent.rollout.rank_shard import RankShard
from rl_agent.rollout.sample import Assignment, Ledger, Sample
from rl_agent.rollout.shared_places import SharedPlaces
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.types import Observation, Status
from tests.support.rollout_setup import make_plan
from tests.support.tiny_chat import tiny_chat
from tests.unit.rollout.collecting import FakeChunk
from tests.unit.rollout.episodes import FakeEngine, FakeEnvironment, make_spec
from tests.unit.rollout.trajectories_made import make_header, make_trajectory


class Screen(FakeEnvironment):
    """Shows one image, which says whose it is."""

    owner = 1

    async def reset(self, task, seed):
        image = Path(task.extra["folder"]) / "screen.png"
        Image.new("RGB", (8, self.owner)).save(image)
        return Observation("look", (str(image),))


class Stuck(FakeEnvironment):
    def __init__(self):
        super().__init__(hangs=["step 1"])


class Engine(FakeEngine):
    served = SimpleNamespace(root="model", max_model_len=4096)

    async def pressure(self):
        raise EngineError("has no metrics")


@dataclass
class Member:
    rank: int
    incarnation: str
    is_master: bool = False
    is_alone: bool = False
    error: Exception | None = None
    doing: str = ""

    def set_doing(self, text):
        self.doing = text

    def check(self):
        if self.error:
            raise self.error


class OneChunk:
    """A source of one chunk, closed behind it."""

    def __init__(self, *indices):
        self.left = [FakeChunk(0, indices)]

    async def next_chunk(self):
        return self.left.pop() if self.left else None

    async def ordered(self):
        return self

    async def more_or_closed(self):
        return False

    def report(self, chunk_id):
        pass


def plan_with(tmp_path, kind, *words):
    where = f"+env_config.kinds.fake=tests.unit.rollout.test_rank_rollout:{kind}"
    return make_plan(tmp_path, where, *words, engine_url="http://127.0.0.1:1")


def make_rollout(assignment, member, specs, shared, *, engine=None):
    ledger, paths = Ledger(Sample(specs)), assignment.config.paths
    shard = RankShard(paths, make_header(), ledger, rank=member.rank, is_sole=False, fsync=False)
    parts = {"engine": engine or Engine(), "chat": tiny_chat(), "shared": shared, "shard": shard}
    return RankRollout(assignment, member, ledger, judge=None, **parts), shard


async def collect(tmp_path, member, source, kind="Screen", *, count=2, words=(), engine=None, split="train"):
    plan = plan_with(tmp_path, kind, *words)
    specs = [make_spec(index) for index in range(count)]
    for spec in specs:
        spec.task.extra["folder"] = str(tmp_path)
    assignment, shared = Assignment(plan, split, 1, resume=False), SharedPlaces.of(plan.config)
    rollout, shard = make_rollout(assignment, member, specs, shared, engine=engine)
    async with asyncio.timeout(10), shard:
        await rollout.collect(source)
    return plan, rollout


async def test_two_nodes_that_run_the_same_episode_each_keep_what_was_seen_there(tmp_path, monkeypatch):
    for owner, name in enumerate(("first", "again"), 1):
        monkeypatch.setattr(Screen, "owner", owner)
        plan, _ = await collect(tmp_path, Member(1, name), OneChunk(0))
    kept = [
        step.observation.images[0]
        for shard in plan.paths.shards("train", 1)
        for line in shard.with_name(shard.name + ".checkpoint").read_bytes().splitlines()[1:]
        for step in TRAJECTORY.validate_json(line).steps
    ]
    assert list(map(height, kept)) == [1, 2]


def height(path: str) -> int:
    with Image.open(path) as image:
        return image.height


@pytest.mark.parametrize("allows", [True, False])
async def test_episodes_are_named_to_the_pool_only_if_bound_to_one_version(tmp_path, allows):
    engine = Engine()
    words = ("trainer=grpo", "pool=elastic", f"trainer.batch.allow_mixed_versions={str(allows).lower()}")
    member = Member(0, "a", is_master=True)
    await collect(tmp_path, member, OneChunk(0, 1), "FakeEnvironment", words=words, engine=engine)
    named = {sampling.episode for sampling in engine.samplings}
    assert named == {""} if allows else len(named - {""}) == 2
    assert set(engine.ended_episodes) == named - {""}


@pytest.mark.parametrize(
    ("words", "timeout_s"),
    [
        (("trainer=grpo", "pool=elastic"), 18000.0),  # that of the episode: a long response is no slow one
        (("trainer=grpo", "pool=elastic", "rollout.request_timeout_s=50"), 50.0),
        ((), 0.0),
    ],
)
async def test_a_pool_waits_for_a_response_as_long_as_the_run_does(tmp_path, words, timeout_s):
    engine, member = Engine(), Member(0, "a", is_master=True)
    await collect(tmp_path, member, OneChunk(0, 1), "FakeEnvironment", words=words, engine=engine)
    assert {sampling.timeout_s for sampling in engine.samplings} == {timeout_s}


async def test_a_node_that_lost_membership_stops_in_mid_episode_unrecorded(tmp_path):
    member = Member(1, "abc", error=RetryLater("the master has given this node up"))
    with pytest.raises(RetryLater, match="given this node up"):
        await collect(tmp_path, member, OneChunk(0, 1), "Stuck")
    assert not (tmp_path / "log" / "train_trajectories").exists()


async def test_the_others_see_how_far_it_is(tmp_path):
    member = Member(1, "abc")
    await collect(tmp_path, member, OneChunk(0, 1))
    assert member.doing.startswith("train iteration 1: 0 of ")


@pytest.mark.parametrize(("is_master", "submitted"), [(True, 2), (False, 1)])
async def test_only_a_master_that_is_alone_has_the_whole_iteration_to_itself(tmp_path, is_master, submitted):
    member = Member(0, "abc", is_master=is_master, is_alone=True)  # a worker whose master has just left
    _, rollout = await collect(tmp_path, member, OneChunk(0))
    assert rollout.collector.submitted == submitted


async def test_an_episode_that_two_files_hold_is_counted_once(tmp_path):
    _, rollout = await collect(tmp_path, Member(1, "abc"), OneChunk(0), count=3)
    twice = [make_trajectory(0), make_trajectory(1), make_trajectory(1)]
    assert rollout.count(twice) == 3
    assert rollout.collector.done == 2
    assert rollout.record()["train/episodes"] == 2


async def test_rollouts_that_overlap_keep_the_lengths_of_both(tmp_path):
    plan = plan_with(tmp_path, "Screen", "trainer=grpo", "pool=elastic")
    plan.paths.trajectory_dir("train").mkdir(parents=True)
    shared, member, specs = SharedPlaces.of(plan.config), Member(0, "a"), [make_spec(0), make_spec(1)]
    ordered, early = (
        make_rollout(Assignment(plan, "train", iteration, resume=False), member, specs, shared)[0]
        for iteration in (1, 2)
    )
    for index, rollout in enumerate((ordered, early)):
        rollout.count([make_trajectory(index)])
        rollout.keep_lengths()
    kept = ResponseLengths.load(plan.paths.response_lengths("train"))
    assert all(kept.expected(spec.task.task_id, 0) for spec in specs)


class Slow(FakeEnvironment):
    """Lets the second task of an evaluation begin a while after the first has ended, and of train never."""

    is_first_over: asyncio.Event
    split: str

    async def reset(self, task, seed):
        if task.task_id == make_spec(1).task.task_id:
            await Slow.is_first_over.wait()
            await asyncio.sleep(0.3)
        return await super().reset(task, seed)

    async def close(self):
        if Slow.split == "test":
            Slow.is_first_over.set()


@pytest.mark.parametrize(("split", "abandoned"), [("train", 1), ("test", 0)])
async def test_an_evaluation_waits_for_its_slowest_episodes(tmp_path, monkeypatch, split, abandoned):
    monkeypatch.setattr(Slow, "is_first_over", asyncio.Event(), raising=False)
    monkeypatch.setattr(Slow, "split", split, raising=False)
    words = ("rollout.completion_threshold=0.5", "rollout.completion_grace_period=0")
    member = Member(0, "a", is_master=True, is_alone=True)
    _, rollout = await collect(tmp_path, member, OneChunk(0, 1), "Slow", words=words, split=split)
    assert rollout.collector.ended[Status.ABANDONED] == abandoned
