"""The next episode goes to a worker, and workers are replaced in time."""

import pytest

from rl_agent.env.remote import placement
from rl_agent.env.remote.placement import WorkerLimits

LIMITS = WorkerLimits(4, 60.0, 100, 3600.0, 1000.0)


def test_the_more_often_an_episode_met_a_crash_the_fewer_share_its_worker():
    most = [placement.MOST_A_WORKER[placement.level_of(crashes)] for crashes in range(5)]
    assert most == sorted(most, reverse=True)
    assert most[0] > 10_000
    assert most[-1] == 1
    assert [placement.workers_of_level(level, 4) for level in range(3)] == [4, 2, 2]
    assert placement.workers_of_level(2, 1) == 1


@pytest.mark.parametrize(
    ("loads", "most", "index"), [([], 4, None), ([2, 1, 3], 4, 1), ([4, 4], 4, None), ([1, 1], 4, 0)]
)
def test_the_worker_with_least_is_next(loads, most, index):
    assert placement.least_loaded(loads, most) == index


@pytest.mark.parametrize(
    ("episodes", "age_s", "rss_mib", "reason"),
    [(0, 0.0, 0.0, ""), (100, 0.0, 0.0, "100 episodes"), (0, 3600.0, 0.0, "3600 s"), (0, 0.0, 1000.0, "MiB")],
)
def test_a_worker_is_replaced_by_episodes_age_and_memory(episodes, age_s, rss_mib, reason):
    message = placement.reason_to_replace(LIMITS, episodes=episodes, age_s=age_s, rss_mib=rss_mib)
    assert reason in message
    assert bool(message) == bool(reason)


def test_twice_the_memory_is_too_much_to_wait():
    assert not placement.is_out_of_bounds(LIMITS, 1999.0)
    assert placement.is_out_of_bounds(LIMITS, 2000.0)


def test_places_are_divided_by_what_servers_have():
    places = {"small": 10, "large": 90}
    used = dict.fromkeys(places, 0)
    for _ in range(50):
        name = placement.freest((name, used[name], places[name]) for name in places)
        used[name] += 1
    assert used == {"small": 5, "large": 45}
    for _ in range(50):
        used[placement.freest((name, used[name], places[name]) for name in places)] += 1
    assert used == places
    assert placement.freest((name, used[name], places[name]) for name in places) is None
