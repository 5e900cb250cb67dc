"""A node follows the master: the Views that count, and the time at which it gives up."""

import pytest

from rl_agent.cluster.protocol.follower import Follower
from rl_agent.cluster.protocol.records import ClusterPaths, MemberView, RunEnd, View
from rl_agent.errors import ConfigError, RetryLater

LEASE_S = 30.0


def member(incarnation="me", status="alive", reason=""):
    return MemberView(
        incarnation=incarnation, rank=1, host="b", weight=1, is_joiner=False, status=status, reason=reason
    )


def view(beat=1, *, master="m", members=(), run_id="run", attempt=1, number=1, term=1, **fields):
    values = {"refused": {}, "order": None, "work": None, "decisions": {}, "ended": None}
    return View(
        number=number,
        beat=beat,
        run_id=run_id,
        attempt=attempt,
        term=term,
        master=master,
        host="a",
        heartbeat_s=2.0,
        lease_s=LEASE_S,
        config_digest="d",
        weights=(1, 1),
        members=members,
        **(values | fields),
    )


def follower(*, follows=False):
    made = Follower("me", ClusterPaths("run", 1), lease_s=LEASE_S, now=0.0)
    if follows:
        made.update(view(members=(member(),)), 0.0)
    return made


def look_until(made, end_s, *, start_s=0.0):
    now = start_s
    while now < end_s:
        now += 1.0
        made.update(None, now)


def test_a_view_counts_once_it_names_this_node():
    made = follower()
    assert made.update(view(1), 1.0) and made.view is None and made.answers == "m"
    assert made.update(view(2, members=(member(),), number=2), 2.0) and made.view.beat == 2


def test_an_older_view_changes_nothing():
    made = follower(follows=True)
    made.update(view(5, members=(member(),)), 1.0)
    assert not made.update(view(4, members=(member(status="dead"),), number=9), 2.0)
    assert made.view.beat == 5


def test_a_beat_alone_is_life_and_no_news():
    made = follower(follows=True)
    look_until(made, LEASE_S - 1)
    assert not made.update(view(2, members=(member(),)), LEASE_S)
    look_until(made, 2 * LEASE_S - 1, start_s=LEASE_S)


def test_a_master_that_is_silent_for_a_lease_is_lost_and_named():
    made = follower(follows=True)
    with pytest.raises(RetryLater, match=r"rank 0 \(a\), has been silent for 31 s"):
        look_until(made, LEASE_S + 1)


def test_a_node_that_was_stopped_looks_again_before_it_gives_the_master_up():
    made = follower(follows=True)
    made.update(None, 10 * LEASE_S)
    made.update(view(2, members=(member(),)), 10 * LEASE_S + 1)
    assert made.silent_s == 0.0


def test_a_master_that_has_ended_is_not_silent():
    made = follower(follows=True)
    made.update(view(2, members=(member(),), ended=RunEnd(status=0, reason="done")), 1.0)
    look_until(made, 3 * LEASE_S, start_s=1.0)


@pytest.mark.parametrize("members", [(), (member(status="dead", reason="silent for 31 s"),)])
def test_a_node_that_the_master_gave_up_stops(members):
    made = follower(follows=True)
    with pytest.raises(RetryLater, match="has declared this node dead"):
        made.update(view(2, members=members), 1.0)


def test_a_refusal_has_its_reason_and_comes_only_from_the_answered_master():
    made = follower()
    refusing = view(1, refused={"me": "rank 1 is taken"})
    made.update(refusing, 1.0)
    with pytest.raises(ConfigError, match="rank 1 is taken"):
        made.update(refusing.model_copy(update={"beat": 2}), 2.0)


def test_a_leftover_of_another_run_is_waited_out_and_a_living_one_is_told():
    made = follower()
    leftover = view(7, run_id="earlier", master="old")
    made.update(leftover, 1.0)
    made.update(leftover, 2.0)
    assert made.answers is None
    with pytest.raises(RetryLater, match="run earlier, attempt 1, uses this log path"):
        made.update(leftover.model_copy(update={"beat": 8}), 3.0)


def test_a_later_master_ends_this_membership_and_an_earlier_one_is_ignored():
    made = follower(follows=True)
    assert not made.update(view(9, master="older", term=0), 1.0)
    with pytest.raises(RetryLater, match=r"a new master, rank 0 \(a\), has taken over"):
        made.update(view(1, master="newer", term=2), 2.0)


def test_a_run_that_ended_before_this_node_came_has_nothing_for_it():
    with pytest.raises(RetryLater, match="ended before this node joined"):
        follower().update(view(1, ended=RunEnd(status=0, reason="done")), 1.0)


def test_a_node_that_is_named_in_the_last_view_has_only_come_late():
    made = follower()
    made.update(view(1, members=(member(),), ended=RunEnd(status=0, reason="done")), 1.0)
    assert made.view.ended is not None
