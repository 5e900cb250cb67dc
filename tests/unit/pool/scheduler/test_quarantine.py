"""Engines that answer what they cannot have sampled: it costs them, and neither the request nor the run."""

import pytest

from rl_agent.pool.scheduler import events, quarantine
from rl_agent.pool.scheduler.records import EngineState, FailureKind
from tests.support.pool_world import RULES, World, id_of, ready_world, record

KEPT = RULES.min_progress_tokens
"""Tokens that are somewhere."""


class Lying(World):
    """Engines of the names in `liars` answer wrongly once a response has come to `position` of their own.

    `lies_about` limits that to requests with these seeds.
    """

    liars: frozenset = frozenset()
    lies_about: frozenset | None = None
    position: int = 0

    def handle(self, event):
        if isinstance(event, events.Progress):
            request = self.state.requests.get(event.request_id)
            if request is not None and request.attempt == event.attempt and request.engine_id is not None:
                name = self.state.engines[request.engine_id].offer.name
                sampled = len(request.token_ids) - request.attempt_start
                is_meant = self.lies_about is None or request.order.prompt_token_ids[1] in self.lies_about
                if name in self.liars and is_meant and sampled >= self.position:
                    self.engines[request.engine_id].attempts.pop((event.request_id, event.attempt), None)
                    problem = "a token id -7"
                    event = events.Broken(event.request_id, event.attempt, problem, is_wrong_answer=True)
        super().handle(event)


def lying_world(*names, liars, lies_about=None, position=0, **behaviour):
    world = Lying()
    world.liars, world.position = frozenset(liars), position
    world.lies_about = None if lies_about is None else frozenset(lies_about)
    engines = [world.join(name, **behaviour) for name in names]
    world.run(1.0)
    return world, engines


@pytest.mark.parametrize("position", [0, 4, 2 * KEPT], ids=["at once", "after a chunk", "after some"])
def test_faulty_engine_is_quarantined_and_its_requests_end_elsewhere(position):
    world, (bad, good, other) = lying_world("bad", "good", "other", liars=["bad"], position=position)
    for number in range(60):
        world.submit(f"r{number}", 60, seed=number)
    world.run(5.0)
    faulty = record(world, bad)
    assert faulty.is_quarantined and "a token id -7" in faulty.reason
    assert faulty.state is EngineState.READY and not faulty.running
    world.run_to_a_right_end(200)
    assert not [request.failure for request in world.state.requests.values() if request.failure]
    assert faulty.wrong_answers >= quarantine.MAX_WRONG_ANSWERS
    assert not record(world, good).wrong_answers and not record(world, other).is_quarantined


def test_what_an_engine_sent_before_its_wrong_answer_is_kept():
    world, _ = lying_world("one", "two", liars=["one", "two"], position=40)
    world.submit("r", 60)
    world.run_until_all_ended(50)
    [request] = world.state.requests.values()
    world.assert_all_right()
    assert [span.start for span in request.spans] == [0, 40]
    assert len({span.engine_id for span in request.spans}) == 2
    assert request.restarts == 0


def test_next_quarantine_is_longer_even_after_a_new_registration():
    world, [bad, _] = lying_world("bad", "good", liars=["bad"])
    for number in range(30):
        world.submit(f"r{number}", 20, seed=number)
    world.run_until_all_ended(20)
    first = record(world, bad)
    pause_s = first.ready_after - world.now
    assert first.is_quarantined and 0 < pause_s <= quarantine.LONGEST_S
    bad.die(silently=True)
    again = world.join("bad")
    world.run(world.now + 1.0)
    assert record(world, again).is_quarantined
    world.run(world.now + quarantine.LONGEST_S)
    assert not record(world, again).is_quarantined
    for number in range(30, 60):
        world.submit(f"r{number}", 20, seed=number)
    world.run(world.now + 2.0)
    assert record(world, again).ready_after - world.now > quarantine.FIRST_S
    world.run_to_a_right_end(world.now + 20)


def test_request_with_wrong_answers_everywhere_fails_and_blames_no_engine():
    names = [f"e{number}" for number in range(5)]
    world, engines = lying_world(*names, liars=names, lies_about=[7])
    for number in range(40):
        world.submit(f"r{number}", 40, seed=number)
    world.run_until_all_ended(100)
    failed = [request for request in world.state.requests.values() if request.failure]
    assert [request.request_id.name for request in failed] == ["r7"]
    assert "3 wrong answers, from e" in failed[0].failure and "token id -7" in failed[0].failure
    assert failed[0].failure_kind is FailureKind.WRONG_ANSWERS
    assert not any(record(world, engine).is_quarantined for engine in engines)
    assert not any(id_of("r7") in requests for requests in world.state.wrong_answers_of.values())
    world.assert_all_right()


def test_single_engine_may_answer_wrongly_twice_as_often():
    world, [engine] = lying_world("one", liars=["one"], lies_about=[7])
    for number in range(20):
        world.submit(f"r{number}", 20, seed=number)
    world.run_until_all_ended(100)
    assert [r.request_id.name for r in world.state.requests.values() if r.failure] == ["r7"]
    assert record(world, engine).wrong_answers == 2 * RULES.engine_deaths_limit
    assert not record(world, engine).is_quarantined


def test_request_avoids_the_engine_that_answered_it_wrongly():
    world, (bad, good) = lying_world("bad", "good", liars=["bad"], lies_about=[0], capacity=1)
    world.submit("r0", 30, seed=0)
    world.submit("r1", 300, seed=1)
    assert {request.request_id.name: request.engine_id for request in world.state.requests.values()} == {
        "r0": bad.engine_id,
        "r1": good.engine_id,
    }
    world.run_until_all_ended(100)
    assert record(world, bad).wrong_answers == 1
    world.assert_all_right()


def test_request_without_unquarantined_engines_states_that_at_its_deadline():
    world, _ = lying_world("bad", liars=["bad"])
    for number in range(4):
        world.submit(f"r{number}", 20, seed=number, deadline_s=5.0)
    world.run_until_all_ended(100)
    reasons = {request.failure for request in world.state.requests.values()}
    assert any("no engine in the pool that answers rightly" in reason for reason in reasons), reasons


@pytest.mark.parametrize("refusers", ["a", "abc"], ids=["one of three", "all"])
def test_a_request_fails_only_when_a_second_engine_refuses_it(refusers):
    world, _ = ready_world("a", "b", "c")
    world.submit("r", 30)
    request, names = world.request("r"), []
    while request.is_open:
        names.append(world.state.engines[request.engine_id].offer.name)
        if names[-1] not in refusers:
            break
        world.engines[request.engine_id].attempts.clear()
        world.handle(events.Broken(id_of("r"), request.attempt, "HTTP 400: no", is_refusal=True))
    assert len(set(names)) == len(names) <= 2
    assert bool(request.failure) is (refusers == "abc")
    world.run_to_a_right_end(100)


def test_a_continuation_that_is_refused_is_begun_anew_once():
    world, [first] = ready_world("one")
    world.submit("r", 60)
    world.run(1.5)
    request = world.request("r")
    assert request.token_ids
    first.crash()
    second = world.join("two")
    world.run(world.now + 0.2)
    assert request.attempt_start > 0 and request.engine_id == second.engine_id
    second.attempts.clear()
    refusal = "HTTP 400: token id 300 is out of vocabulary"
    world.handle(events.Broken(id_of("r"), request.attempt, refusal, is_refusal=True))
    assert not request.failure and request.restarts == 1 and not request.token_ids
    world.run_to_a_right_end(50)
