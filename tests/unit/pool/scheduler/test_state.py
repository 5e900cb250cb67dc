"""The pool remembers requests and engines, and forgets them."""

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import EngineState, RequestState
from tests.support.pool_world import World, ready_world, state_of, truth


def test_a_new_model_empties_the_engines_that_hold_the_old_one():
    world, [engine] = ready_world("a")
    world.submit("r0", 200)
    world.run(2.0)
    world.handle(events.ModelWanted("model-1", 1))
    assert state_of(world, engine) is EngineState.LOADING
    assert world.request("r0").state is RequestState.QUEUED
    engine.model = "model-1"
    world.run_until_all_ended(100)
    assert [span.weight_version for span in world.request("r0").spans] == [0, 1]
    assert world.request("r0").weight_versions == (0, 1)
    assert list(world.request("r0").token_ids) == truth((200, 0))


def test_a_request_that_cannot_be_continued_begins_afresh():
    world, [first] = ready_world("a")
    world.submit("r0", 100, params={"presence_penalty": 0.5})
    world.run(2.0)
    sampled = len(world.request("r0").token_ids)
    assert sampled
    first.crash()
    assert not world.request("r0").token_ids
    assert world.state.departed[-1].recomputed_tokens == sampled
    world.join("b")
    world.run_to_a_right_end(100)


def test_runs_that_are_over_leave_nothing_behind():
    """A manager may serve runs for months."""
    world, _ = ready_world("a", capacity=4)
    for number in range(8):
        world.submit(f"r{number}", 5, run=f"run-{number}")
    world.run_to_a_right_end(limit_s=1000)
    assert not world.state.queues and not world.state.at_engines


def test_forgotten_requests_leave_no_timers_behind():
    world = World(is_checking=False)
    world.join("a", speed=1e4, batch=1e4, capacity=1000)
    world.run(1.0)
    for number in range(6000):
        world.submit(f"r{number}", 4)
        if number % 500 == 499:
            world.run(world.now + 1.0)
            world.handle(events.Forgotten(tuple(world.state.requests)))
    assert not world.state.requests
    assert len(world.state.timers) < 5000
