"""Who may be connected to a weight server."""

from hypothesis import given
from hypothesis import strategies as st

from rl_agent.weights.server.admission import MOST_GREETING, MOST_GREETING_A_HOST, Admission


def arrivals(admission, host, count, *, start=0):
    return [admission.arrive((host, number), host) for number in range(start, start + count)]


def test_who_shows_no_token_loses_his_place_to_the_next_of_his_host():
    admission = Admission(4)
    assert admission.arrive("honest", "b") is None
    dropped = arrivals(admission, "a", 3 * MOST_GREETING_A_HOST)
    assert dropped[:MOST_GREETING_A_HOST] == [None] * MOST_GREETING_A_HOST
    assert dropped[MOST_GREETING_A_HOST:] == [("a", number) for number in range(2 * MOST_GREETING_A_HOST)]
    assert admission.serve("honest") == (True, None)
    assert admission.serve(("a", 0)) == (False, None), "it was dropped"


def test_many_hosts_without_a_token_lose_the_oldest_places():
    admission = Admission(4)
    for number in range(MOST_GREETING):
        assert admission.arrive(number, f"host {number}") is None
    assert admission.arrive("next", "another") == 0
    assert admission.arrive("and next", "another") == 1


def test_greetings_take_no_place_of_those_who_are_served():
    admission = Admission(2)
    for host in "abc":
        arrivals(admission, host, MOST_GREETING_A_HOST)
    assert [admission.serve((host, 0))[0] for host in "abc"] == [True, True, False]
    admission.leave(("a", 0))
    assert admission.serve(("c", 1)) == (True, None)


def test_a_host_that_has_most_gives_one_of_its_places_to_another():
    admission = Admission(4)
    arrivals(admission, "a", 5)
    assert [admission.serve(("a", number)) for number in range(4)] == [(True, None)] * 4
    assert not admission.has_room_for("a")
    assert admission.serve(("a", 4)) == (False, None)
    dropped = []
    for number in range(3):
        admission.arrive(("b", number), "b")
        dropped.append(admission.serve(("b", number)))
    assert dropped == [(True, ("a", 0)), (True, ("a", 1)), (False, None)]


STEPS = st.lists(st.tuples(st.sampled_from("asl"), st.integers(0, 30), st.sampled_from("xyz")), max_size=120)


@given(STEPS, st.integers(1, 5))
def test_no_more_are_served_than_may_be_and_a_host_that_asks_gets_its_share(steps, most):
    admission, served = Admission(most), set()
    for step, number, host in steps:
        visitor = (number, host)
        if step == "a" and visitor not in served:
            admission.leave(visitor)
            admission.arrive(visitor, host)
        elif step == "s" and visitor not in served:
            is_served, dropped = admission.serve(visitor)
            served.discard(dropped)
            served |= {visitor} if is_served else set()
        elif step == "l":
            admission.leave(visitor)
            served.discard(visitor)
        assert len(served) <= most
