"""Groups reach a trainer, and groups as bytes."""

from dataclasses import replace

import numpy as np
import pytest

from rl_agent.trainer.grpo.data.intake import Intake
from rl_agent.trainer.grpo.data.order import ArrivalOrder
from rl_agent.trainer.grpo.data.samples import Group, Segment, TrainingSample, Versions
from rl_agent.trainer.grpo.data.staleness import AdmissionRule
from tests.integration.trainer.settings import loss_settings


def make_group(key: str, *, rewards=(0.0, 1.0), version: int = 0, responses: int = 2) -> Group:
    segment = Segment(
        np.array([7, 8, 9], np.int32),
        np.array([False] * (3 - responses) + [True] * responses),
        np.array([0.0, -1.0, -2.0], np.float32),
    )
    samples = tuple(
        TrainingSample(f"{key}:{i}", (segment,) * (1 + i % 2), reward, Versions(version, version))
        for i, reward in enumerate(rewards)
    )
    return Group(key, samples)


def intake(*, max_staleness: int = 0, drop: bool = True, vocab_size=None, image_token=None, **loss) -> Intake:
    rule, settings = AdmissionRule(max_staleness, False), loss_settings(drop_uninformative=drop, **loss)
    return Intake(rule, ArrivalOrder(2, 1), settings, vocab_size=vocab_size, image_token=image_token)


def test_a_group_with_an_image_too_few_or_too_many_is_rejected():
    group = make_group("a")
    (segment,) = group.samples[0].segments
    for images, image_token, rejected in (((), 8, 1), (("x",), 8, 0), (("x", "y"), 8, 1), (("x",), None, 1)):
        shown = replace(segment, images=images)
        first = replace(group.samples[0], segments=(shown,))
        second = replace(group.samples[1], segments=(shown,))
        held = intake(image_token=image_token)
        held.offer([replace(group, samples=(first, second))])
        assert (held.next_group(0) is None) == bool(rejected)
        assert held.rejected["misplaced_images"] == rejected


def keys(taken) -> list[str | None]:
    return [None if group is None else group.key for group in taken]


def test_groups_are_handed_out_once_in_the_order_they_arrived():
    held = intake()
    held.offer([make_group("a"), make_group("b")])
    held.offer([make_group("b"), make_group("c")])
    assert keys(held.next_group(0) for _ in range(4)) == ["a", "b", "c", None]
    assert held.rejected == {"known": 1}
    assert keys(held.step_done()) == ["a", "b", "c"]
    assert held.steps == 1
    held.offer([make_group("a")])
    assert held.next_group(1) is None


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (make_group("x", rewards=(1.0, 1.0)), "uninformative"),
        (make_group("x", version=-1), "too_stale"),
        (make_group("x", version=1), "not_published"),
        (make_group("x", responses=0), "empty"),
        (make_group("x", rewards=()), "empty"),
    ],
    ids=["equal rewards", "old", "of the future", "no response", "all failed"],
)
def test_a_group_that_cannot_be_used_is_replaced_by_the_next_and_counted(group, reason):
    held = intake()
    held.offer([group, make_group("b")])
    assert keys([held.next_group(0)]) == ["b"]
    assert held.rejected == {reason: 1}
    assert held.consumed == {"x"}


def test_equal_rewards_are_kept_unless_told_otherwise():
    held = intake(drop=False)
    held.offer([make_group("x", rewards=(1.0, 1.0))])
    assert keys([held.next_group(0)]) == ["x"]


def test_a_waiting_group_is_judged_by_the_version_of_its_step():
    held = intake()
    held.offer([make_group("a"), make_group("b")])
    assert keys([held.next_group(0)]) == ["a"]
    held.step_done()
    assert held.next_group(1) is None
    assert held.rejected == {"too_stale": 1}


def test_tokens_behind_the_embedding_of_the_model_cost_their_group():
    for vocab_size, wanted in ((None, "x"), (10, "x"), (9, None)):
        held = intake(vocab_size=vocab_size)
        held.offer([make_group("x")])  # its largest token is 9
        assert keys([held.next_group(0)]) == [wanted]
        assert held.rejected == ({} if wanted else {"impossible_tokens": 1})


def test_an_abandoned_step_gives_its_groups_back_in_order():
    held = intake()
    held.offer(make_group(key) for key in "abc")
    assert keys(held.next_group(0) for _ in range(2)) == ["a", "b"]
    held.step_abandoned()
    assert keys(held.buffered) == ["a", "b", "c"]
    assert not held.consumed


def test_a_restored_intake_knows_what_was_consumed_and_what_waits():
    held = intake()
    held.restore({"a"}, [make_group("b")], 0)
    held.offer([make_group("a"), make_group("b"), make_group("c")])
    assert keys(held.next_group(0) for _ in range(3)) == ["b", "c", None]
