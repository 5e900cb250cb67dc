"""Connections without a token: what they may take from whom, and that they do not fill a log."""

import logging

from rl_agent.unauthenticated import RateLimitedLog, Unauthenticated, network_of


def test_a_network_with_too_many_loses_its_own_oldest():
    places = Unauthenticated[int](at_most=16, at_most_a_network=4)
    assert [places.arrive(number, "a") for number in range(10)] == [None] * 4 + list(range(6))


def test_where_all_places_are_taken_the_network_that_has_most_loses_one():
    places = Unauthenticated[object](at_most=8, at_most_a_network=4)
    assert places.arrive("honest", "b") is None
    assert [places.arrive(number, "a") for number in range(4)] == [None] * 4
    dropped = [places.arrive(f"host {number}", f"host {number}") for number in range(6)]
    assert dropped == [None, None, None, 0, 1, 2]
    assert places.leave("honest") == "b"


def test_a_place_is_given_up_once():
    places = Unauthenticated[str](at_most=1, at_most_a_network=1)
    places.arrive("one", "a")
    assert places.leave("one") == "a"
    assert places.leave("one") is None
    assert places.arrive("two", "a") is None


def test_one_network_is_one_address():
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("fe80::1%eth0") == "fe80::/64"


def test_what_strangers_cause_is_logged_at_once_and_then_now_and_again(caplog):
    now = [0.0]
    complaints = RateLimitedLog(logging.getLogger("strangers"), clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            complaints.warning("turned away")
        now[0] += 11.0
        complaints.warning("turned away")
    assert caplog.messages == ["turned away", "turned away (999 more before that were not logged)"]
