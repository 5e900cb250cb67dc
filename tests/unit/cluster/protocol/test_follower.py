"""A node follows the master: the Views that count, and the time at which it gives up."""

import pytest

from rl_agent.cluster.protocol.follower import Follower
from rl_agent.cluster.protocol.records import ClusterPaths, RunEnd
from rl_agent.errors import ConfigError, RetryLater
from tests.unit.cluster.cluster_states import LEASE_S, member, view

ME = (member(1, "me"),)
DONE = RunEnd(status=0, reason="done")


@pytest.fixture
def newcomer():
    return Follower("me", ClusterPaths("run", 1), lease_s=LEASE_S, now=0.0)


@pytest.fixture
def follower(newcomer):
    newcomer.update(view(members=ME), 0.0)
    return newcomer


def look_until(follower, end_s, *, start_s=0.0):
    now = start_s
    while now < end_s:
        now += 1.0
        follower.update(None, now)


def test_a_view_counts_once_it_names_this_node(newcomer):
    assert newcomer.update(view(), 1.0) and newcomer.view is None and newcomer.answers == "m0"
    assert newcomer.update(view(beat=2, members=ME, number=2), 2.0) and newcomer.view.beat == 2


def test_an_older_view_changes_nothing(follower):
    follower.update(view(beat=5, members=ME), 1.0)
    assert not follower.update(view(beat=4, members=(member(1, "me", status="dead"),), number=9), 2.0)
    assert follower.view.beat == 5


def test_a_beat_alone_is_life_and_no_news(follower):
    look_until(follower, LEASE_S - 1)
    assert not follower.update(view(beat=2, members=ME), LEASE_S)
    look_until(follower, 2 * LEASE_S - 1, start_s=LEASE_S)


def test_a_master_that_is_silent_for_a_lease_is_lost_and_named(follower):
    with pytest.raises(RetryLater, match=r"rank 0 \(host-0\), has been silent for 31 s"):
        look_until(follower, LEASE_S + 1)


def test_a_node_that_was_stopped_looks_again_before_it_gives_the_master_up(follower):
    follower.update(None, 10 * LEASE_S)
    follower.update(view(beat=2, members=ME), 10 * LEASE_S + 1)
    assert follower.silent_s == 0.0


def test_a_master_that_has_ended_is_not_silent(follower):
    follower.update(view(beat=2, members=ME, ended=DONE), 1.0)
    look_until(follower, 3 * LEASE_S, start_s=1.0)


@pytest.mark.parametrize("members", [(), (member(1, "me", status="dead", reason="silent for 31 s"),)])
def test_a_node_that_the_master_gave_up_stops(follower, members):
    with pytest.raises(RetryLater, match="has declared this node dead"):
        follower.update(view(beat=2, members=members), 1.0)


def test_a_refusal_has_its_reason_and_comes_only_from_the_answered_master(newcomer):
    refusing = view(refused={"me": "rank 1 is taken"})
    newcomer.update(refusing, 1.0)
    with pytest.raises(ConfigError, match="rank 1 is taken"):
        newcomer.update(refusing.model_copy(update={"beat": 2}), 2.0)


def test_a_leftover_of_another_run_is_waited_out_and_a_living_one_is_told(newcomer):
    leftover = view(beat=7, run_id="earlier", master="old")
    newcomer.update(leftover, 1.0)
    newcomer.update(leftover, 2.0)
    assert newcomer.answers is None
    with pytest.raises(RetryLater, match="run earlier, attempt 1, uses this log path"):
        newcomer.update(leftover.model_copy(update={"beat": 8}), 3.0)


def test_a_later_master_ends_this_membership_and_an_earlier_one_is_ignored(follower):
    assert not follower.update(view(beat=9, master="older", term=0), 1.0)
    with pytest.raises(RetryLater, match=r"a new master, rank 0 \(host-0\), has taken over"):
        follower.update(view(master="newer", term=2), 2.0)


def test_a_run_that_ended_before_this_node_came_has_nothing_for_it(newcomer):
    with pytest.raises(RetryLater, match="ended before this node joined"):
        newcomer.update(view(ended=DONE), 1.0)


def test_a_node_that_is_named_in_the_last_view_has_only_come_late(newcomer):
    newcomer.update(view(members=ME, ended=DONE), 1.0)
    assert newcomer.view.ended is not None
