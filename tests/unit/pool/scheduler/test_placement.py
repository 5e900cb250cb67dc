"""How many tokens travel together, and what is made of a death before they came."""

from dataclasses import replace

from rl_agent.pool.scheduler.placement import FEW_TOKENS, USUAL_TOKENS
from rl_agent.testing.pool_world import RULES, World


def test_who_dies_with_an_engine_before_its_first_long_chunk_is_no_suspect_yet():
    rules = replace(RULES, stream_interval=64)
    world = World(rules=rules, chunk=64)
    world.join("a")
    world.run(1.0)
    for number in range(10):
        world.submit(f"r{number}", 70, seed=number)
    world.join("b")
    next(iter(world.engines.values())).crash()
    assert not world.state.suspects
    assert all(request.interval < 64 for request in world.state.requests.values() if request.is_excused)
    world.run_until_all_ended(300)
    world.assert_all_right()


def test_a_request_that_kills_engines_is_found_though_they_send_long_chunks():
    world = World(rules=replace(RULES, stream_interval=64), poison=frozenset({7}), poison_position=20)
    engines = [world.join(f"e{i}") for i in range(7)]
    world.run(1.0)
    for number in range(100):
        world.submit(f"r{number}", 70, seed=number)
    world.run_until_all_ended(300)
    failed = [r.order.prompt_token_ids[1] for r in world.state.requests.values() if r.failure]
    assert failed == [7]
    assert sum(not engine.is_alive for engine in engines) <= RULES.engine_deaths_limit + 2
    world.assert_all_right()


def test_engines_send_as_many_tokens_together_as_they_make_in_some_seconds_and_fewer_to_a_reader():
    world = World(rules=replace(RULES, stream_interval=128, stream_interval_s=2.0))
    world.join("a", speed=20.0)
    world.run(1.0)
    world.submit("first", 400)
    world.run(10.0)
    world.submit("second", 400)
    world.submit("read", 400, is_read_along=True)
    world.run(10.1)
    intervals = [world.request(name).interval for name in ("first", "second", "read")]
    assert intervals[0] == USUAL_TOKENS  # its speed was not known
    assert 15 <= intervals[1] <= 45 and intervals[2] == FEW_TOKENS
