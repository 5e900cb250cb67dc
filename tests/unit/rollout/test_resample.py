"""Others are sampled in place of groups, which the files of all ranks decide, in any order."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths
from rl_agent.rollout.comparison import Comparison
from rl_agent.rollout.resample import Resampling, SiblingOutcome, is_replaced
from rl_agent.rollout.sample import Sample
from rl_agent.rollout.trajectories.line import to_line
from rl_agent.rollout.trajectories.shard import start_shard
from rl_agent.trainer.grpo.data.intake import Intake
from rl_agent.trainer.grpo.data.order import ArrivalOrder
from rl_agent.trainer.grpo.data.samples import make_group
from rl_agent.trainer.grpo.data.staleness import AdmissionRule
from rl_agent.types import EpisodeKey, Generation, Status, Step, Trajectory
from tests.integration.trainer.settings import loss_settings
from tests.unit.rollout.trajectories_made import make_header, make_step, make_trajectory, sample_of

SIZE, ASKED, GROUPS = 2, 4, 12
EQUAL, MIXED = (1.0, 1.0), (0.0, 1.0)
DONE, FAILED, ABANDONED = Status.COMPLETED, Status.FAILED, Status.ABANDONED


def episode(group: int, attempt: int, reward: float | None = 1.0, status: Status = DONE) -> Trajectory:
    return make_trajectory(group, attempt=attempt, reward=reward, status=status)


def make_sample(groups: int = GROUPS) -> Sample:
    episodes = (episode(group, attempt) for group in range(groups) for attempt in range(SIZE))
    return sample_of(episodes, count=ASKED * SIZE)


class Files:
    """Files that the ranks of a run have recorded."""

    def __init__(self, log_path) -> None:
        self.paths = RunPaths(log_path)

    def write(self, *episodes: Trajectory, rank: int = 0, run_id: str = "run") -> None:
        file = self.paths.checkpoint_shard("train", 1, rank=rank)
        if not file.exists():
            start_shard(file, replace(make_header(), run_id=run_id))
        with file.open("ab") as opened:
            opened.write(b"".join(map(to_line, episodes)))

    def group(self, group: int, rewards: Sequence[float], *, rank: int = 0) -> None:
        self.write(*(episode(group, n, reward) for n, reward in enumerate(rewards)), rank=rank)

    def resampling(self, sample: Sample | None = None, **loss) -> Resampling:
        return Resampling(
            sample or make_sample(), self.paths, "train", 1, run_id="run", group_size=SIZE,
            comparison=Comparison(loss_settings(drop_uninformative=True, **loss)),
        )  # fmt: skip


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path)


def looked(resampling: Resampling) -> tuple[int, int]:
    """Groups that are left out, and groups that are asked for, after a look."""
    resampling.look()
    return resampling.left_out, resampling.asked // SIZE


def test_each_group_left_out_requests_one_group_of_the_reserve(files):
    resampling = files.resampling()
    assert looked(resampling) == (0, ASKED)
    files.group(0, EQUAL)
    files.group(1, MIXED, rank=1)
    files.write(episode(2, 0))
    assert looked(resampling) == (1, ASKED + 1)
    files.write(episode(2, 1), rank=1)  # its sibling is in another file
    files.group(4, EQUAL)  # of the reserve, and no better
    assert looked(resampling) == (3, ASKED + 3)


def test_no_more_is_asked_for_than_there_is(files):
    resampling = files.resampling(make_sample(groups=6))
    for group in range(6):
        files.group(group, EQUAL)
    assert looked(resampling) == (6, 6)


def test_begun_groups_of_the_reserve_are_requested_in_any_case(files):
    files.write(episode(5, 0))
    assert looked(files.resampling()) == (0, 6)


def test_files_of_another_run_request_nothing_and_samples_must_match(files):
    files.write(episode(0, 0), episode(0, 1), rank=1, run_id="an earlier run")
    assert looked(files.resampling()) == (0, ASKED)
    files.write(episode(99, 0))
    with pytest.raises(StoreError, match="not of this iteration's sample"):
        files.resampling().look()


def test_where_the_sample_has_no_reserve_nothing_is_read(files):
    files.write(episode(99, 0))
    resampling = files.resampling(make_sample(groups=ASKED))
    assert looked(resampling) == (0, ASKED) and not resampling.has_reserve


@given(
    rewards=st.lists(st.sampled_from([EQUAL, MIXED]), min_size=GROUPS, max_size=GROUPS),
    looks=st.sets(st.integers(0, 2 * GROUPS)),
    ranks=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_the_files_decide_however_often_and_by_any_reader(tmp_path_factory, rewards, looks, ranks, seed):
    """Episodes of what is asked for end in any order; the master is killed, and another reads all anew."""
    files, chance, recorded = Files(tmp_path_factory.mktemp("log")), random.Random(seed), []
    resampling = files.resampling()
    while True:
        todo = [n for n in range(resampling.asked) if n not in recorded]
        if not todo:
            resampling.look()
            if resampling.asked == len(recorded):
                break
            continue
        index = chance.choice(todo)
        group, attempt = divmod(index, SIZE)
        files.write(episode(group, attempt, rewards[group][attempt]), rank=chance.randrange(ranks))
        recorded.append(index)
        if len(recorded) in looks:
            resampling.look()
            anew = files.resampling()
            assert looked(anew) == (resampling.left_out, resampling.asked // SIZE)
            resampling = chance.choice([resampling, anew])
    run = rewards[: resampling.asked // SIZE]
    assert run.count(MIXED) == ASKED or len(run) == GROUPS
    assert resampling.left_out == run.count(EQUAL)


OUTCOMES = {
    "equal": ([(DONE, 1.0), (DONE, 1.0), (DONE, 1.0)], True),
    "mixed": ([(DONE, 1.0), (DONE, 0.0), (DONE, 1.0)], False),
    "equal but for failures": ([(DONE, 1.0), (FAILED, None), (DONE, 1.0)], True),
    "one of them left": ([(DONE, 1.0), (FAILED, None), (FAILED, None)], True),
    "all failed": ([(FAILED, None)] * 3, True),
    "mixed but for a failure": ([(DONE, 1.0), (FAILED, None), (DONE, 0.0)], False),
}


@pytest.mark.parametrize(("outcomes", "is_left_out"), OUTCOMES.values(), ids=OUTCOMES)
def test_only_groups_that_the_trainer_leaves_out_are_resampled(outcomes, is_left_out):
    siblings = [episode(0, n, reward, status) for n, (status, reward) in enumerate(outcomes)]
    loss = loss_settings(drop_uninformative=True)
    held = Intake(AdmissionRule(0, True), ArrivalOrder(1, 1), loss)
    held.offer([make_group(siblings)])
    assert (held.next_group(0) is None) == is_left_out
    read = [SiblingOutcome(sibling.key, sibling.status, sibling.reward) for sibling in siblings]
    assert is_replaced(read, Comparison(loss)) == is_left_out


def turns(tokens: int, finish_reason: str) -> tuple[Step, ...]:
    """Two turns, of which the second is as long as that."""
    first = replace(make_step().generation, token_ids=(1,) * 5, logprobs=(-1.0,) * 5)
    second = Generation((1,) * tokens, (-1.0,) * tokens, "", finish_reason, 0, 0)
    return tuple(replace(make_step(), generation=generation) for generation in (first, second))


SHORT, LONG, CUT = turns(10, "stop"), turns(60, "stop"), turns(64, "length")


@pytest.mark.parametrize(
    ("loss", "siblings", "is_left_out"),
    [
        ({"advantage": "reinforce"}, [(1.0, SHORT), (1.0, SHORT)], False),
        ({"advantage": "reinforce"}, [(0.0, SHORT), (0.0, SHORT)], True),
        ({"overlong": "penalty"}, [(1.0, SHORT), (1.0, LONG)], False),
        ({"overlong": "penalty"}, [(1.0, SHORT), (1.0, SHORT)], True),
        ({"overlong": "mask"}, [(1.0, SHORT), (0.0, CUT)], False),
        ({"overlong": "mask"}, [(1.0, CUT), (0.0, CUT)], True),
        ({"overlong": "keep"}, [(1.0, CUT), (0.0, CUT)], False),
    ],
)
def test_rollout_and_trainer_judge_alike_by_the_advantages_in_use(files, loss, siblings, is_left_out):
    episodes = [replace(episode(0, n, reward), steps=steps) for n, (reward, steps) in enumerate(siblings)]
    files.write(*episodes)
    assert looked(files.resampling(**loss)) == (is_left_out, ASKED + is_left_out)
    held = Intake(AdmissionRule(0, True), ArrivalOrder(1, 1), loss_settings(drop_uninformative=True, **loss))
    held.offer([make_group(episodes)])
    assert (held.next_group(0) is None) == is_left_out


def test_groups_given_up_by_the_stop_rule_are_not_begun_anew():
    outcomes = [
        SiblingOutcome(EpisodeKey("a", 0, n), status, None) for n, status in enumerate((ABANDONED, FAILED))
    ]
    assert not is_replaced(outcomes, Comparison(loss_settings(drop_uninformative=True)))
