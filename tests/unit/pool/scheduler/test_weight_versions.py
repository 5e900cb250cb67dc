"""Weight versions in the pool's machine: who is behind, who gets what, who is given up."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import EngineState, RequestState, Weights
from rl_agent.pool.scheduler.reports import WeightBytes, WeightsReport
from rl_agent.pool.scheduler.state import totals_of
from rl_agent.pool.scheduler.weight_versions import MAX_PEERS, next_publisher, sources_for
from tests.support.pool_world import RULES, ready_world, record

TRAINER = "tcp://10.0.0.1:7000"


def publish(world, version, digest=None, source=TRAINER, publisher=None):
    digest = digest or f"digest {version}"
    weights = Weights(version, digest, (source,), "token", version, publisher=publisher)
    world.handle(events.WeightsWanted(weights))


def test_engine_behind_serves_its_version_and_stamps_its_tokens():
    world, [engine] = ready_world("a")
    world.submit("r0", 400)
    world.run(2.0)
    publish(world, 1)
    assert engine.is_ready and world.request("r0").state is RequestState.RUNNING
    world.run(4.0)
    before = len(world.request("r0").token_ids)
    engine.load_wanted()
    world.run_to_a_right_end(100)
    assert [(span.start, span.weight_version) for span in world.request("r0").spans] == [(0, 0), (before, 1)]


def test_stale_publish_is_skipped_and_a_repeated_one_replaces_sources():
    world, _ = ready_world("a")
    publish(world, 3)
    publish(world, 2)
    publish(world, 3, digest="another")
    assert world.state.weights.digest == "digest 3"
    publish(world, 3, source="tcp://10.0.0.9:7000")
    assert world.state.weights.sources == ("tcp://10.0.0.9:7000",)


def test_next_publisher_number_exceeds_all_earlier_ones_at_any_clock():
    world, _ = ready_world("a")
    publish(world, 1, publisher=5000)
    assert world.state.publisher == 5000
    assert next_publisher(world.state, 90) == 5001
    assert next_publisher(world.state, 9000) == 9000


@given(
    st.lists(
        st.one_of(
            st.just("take"),
            st.just("restart"),
            st.tuples(st.integers(0, 4), st.integers(1, 6), st.sampled_from("xy")),
        ),
        max_size=30,
    ),
    st.randoms(use_true_random=False),
)
def test_only_weights_of_the_newest_publisher_are_accepted(history, random):
    """Publishers take places and announce in any order; a restarted manager goes on with what it wrote."""
    world, places = ready_world("a")[0], []
    newest = 0
    for step in history:
        before = world.state.weights
        if step == "take":
            newest = next_publisher(world.state, random.randint(0, 100))
            world.handle(events.PlaceTaken(newest))
            places.append(newest)
        elif step == "restart":
            world = ready_world("a")[0]
            if before is not None:
                world.handle(events.WeightsWanted(before))
            world.handle(events.PlaceTaken(newest))
            assert world.state.weights == before
        elif places:
            index, version, digest = step
            place = places[index % len(places)]
            publish(world, version, digest, source=f"tcp://10.0.0.{place}:1", publisher=place)
            after = world.state.weights
            assert place == newest or after == before
            assert after is None or before is None or after.weight_version >= before.weight_version
            if place == newest:
                is_newer = before is None or (version, digest) == (before.weight_version, before.digest)
                if is_newer or version > before.weight_version:
                    assert after.sources == (f"tcp://10.0.0.{place}:1",)
    assert places == sorted(set(places))


def test_a_request_waits_for_an_engine_with_the_version_it_asks_for():
    world, [old, new] = ready_world("a", "b")
    publish(world, 1)
    world.submit("strict", 40, min_weight_version=1)
    world.submit("any", 40)
    assert world.request("strict").state is RequestState.QUEUED
    assert world.request("any").state is RequestState.RUNNING
    new.load_wanted()
    assert world.request("strict").engine_id == new.engine_id
    world.run_until_all_ended(100)
    assert [span.weight_version for span in world.request("strict").spans] == [1]
    assert old.is_ready


def test_held_requests_fill_every_engine_that_has_caught_up_and_no_other():
    world, engines = ready_world("a", "b", "c", capacity=4)
    publish(world, 1)
    for number in range(12):
        world.submit(f"r{number}", 4000, seed=number, min_weight_version=1)
    assert not any(engine.attempts for engine in engines)
    engines[0].load_wanted()
    engines[1].load_wanted()
    assert [len(engine.attempts) for engine in engines] == [4, 4, 0]
    engines[2].load_wanted()
    assert [len(engine.attempts) for engine in engines] == [4, 4, 4]


def test_siblings_and_moved_work_do_not_go_to_an_engine_that_is_too_old():
    world, [old, new] = ready_world("a", "b", capacity=4)
    world.submit("warm", 400, group="g")
    on_old = world.state.engines[world.request("warm").engine_id].offer.name == "a"
    old, new = (old, new) if on_old else (new, old)
    publish(world, 1)
    new.load_wanted()
    for number in range(3):
        world.submit(f"r{number}", 400, seed=number, group="g", min_weight_version=1)
    world.run(20.0)
    assert not any(name.startswith("r") for name, _ in old.attempts)
    world.run_to_a_right_end(200)


def test_request_for_a_missing_version_fails_at_its_deadline_with_reason():
    world, _ = ready_world("a")
    world.submit("r0", 40, min_weight_version=7, deadline_s=5.0)
    world.run(10.0)
    assert world.request("r0").failure.endswith("in the queue for weight version 7")


def test_an_engine_too_far_behind_gets_nothing_until_it_has_caught_up():
    world, [engine] = ready_world("a", rules=replace(RULES, max_versions_behind=1))
    publish(world, 1)
    assert engine.is_ready
    publish(world, 2)
    assert record(world, engine).state is EngineState.LOADING
    world.submit("r0", 40)
    assert not engine.attempts
    engine.load_wanted()
    assert engine.is_ready and engine.attempts


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (WeightsReport(9, "digest 9"), "which this pool does not know"),
        (WeightsReport(2, "another digest"), "serves other weights than version 2"),
    ],
)
def test_engine_with_unpublished_weights_gets_no_requests(report, words):
    world, [engine] = ready_world("a")
    publish(world, 2)
    engine.report(report)
    assert record(world, engine).state is EngineState.LOADING
    assert words in record(world, engine).reason


def test_loaded_weights_are_of_no_use_once_the_pool_wants_a_folder():
    world, [engine] = ready_world("a")
    publish(world, 1)
    engine.load_wanted()
    world.handle(events.ModelWanted("model", 2))
    assert record(world, engine).state is EngineState.LOADING
    engine.report(WeightsReport())
    assert engine.is_ready and record(world, engine).weight_version == 2


def test_a_checkpoint_of_the_published_weights_restarts_nobody():
    world, [engine] = ready_world("a")
    publish(world, 1)
    engine.load_wanted()
    world.handle(events.ModelWanted("version-000001", 1))
    assert engine.is_ready and world.state.model == "model"


def test_a_rollback_takes_the_pool_to_an_older_version():
    world, [engine] = ready_world("a")
    world.handle(events.ModelWanted("new", 3))
    world.handle(events.ModelWanted("model", 2))
    assert world.state.model == "new"
    world.handle(events.ModelWanted("model", 2, is_rollback=True))
    assert engine.is_ready and record(world, engine).weight_version == 2


def test_engine_that_never_catches_up_is_dropped_with_its_workers_reason():
    world, [stuck, well] = ready_world("a", "b")
    world.submit("r0", 40)
    publish(world, 1)
    well.load_wanted()
    stuck.report(WeightsReport(problem="tcp://10.0.0.1:7000: connection refused"))
    world.run(1.0 + RULES.weights_timeout_s + 1)
    assert not stuck.is_ready and well.is_ready
    reason = world.state.departed[-1].reason
    assert reason == "stays at weight version 0 for 60 s: tcp://10.0.0.1:7000: connection refused"
    assert world.state.account.engine_deaths == 0


def test_an_engine_that_is_always_one_behind_but_moves_on_stays():
    world, [engine] = ready_world("a")
    for version in range(1, 9):
        publish(world, version)
        world.run(world.now + RULES.weights_timeout_s / 3)
        engine.report(WeightsReport(version - 1, f"digest {version - 1}"))
        assert engine.is_ready


def test_sources_are_the_publisher_and_a_few_peers_with_the_version():
    world, engines = ready_world(*"abcdefgh")
    publish(world, 1)
    assert sources_for(world.state, record(world, engines[0])) == (TRAINER,)
    for engine in engines[1:3]:
        engine.load_wanted()
    for engine in engines[3:]:
        engine.report(WeightsReport(source=f"tcp://{engine.name}:1", is_fetching=True))
    sources = sources_for(world.state, record(world, engines[0]))
    assert sources[0] == TRAINER and len(sources) == 1 + MAX_PEERS
    assert set(sources[1:3]) == {"tcp://b:1", "tcp://c:1"}
    peers = {sources_for(world.state, record(world, engine))[1:] for engine in engines}
    assert len(peers) > 2, "all are sent to the same peers"


def test_returning_engine_is_recognised_by_its_weights_at_once():
    world, [engine] = ready_world("a")
    publish(world, 1)
    held = WeightsReport(1, "digest 1")
    offer = replace(record(world, engine).offer, engine_id="again")
    world.engines["again"] = engine
    world.handle(events.Registered(offer, held))
    world.handle(events.Probed("again", "model", 0))
    assert world.state.engines["again"].weight_version == 1


def test_weight_bytes_are_counted_once_if_an_engine_registers_again():
    world, [engine] = ready_world("a")
    for trainer, engines in ((100, 0), (100, 30), (100, 30)):
        engine.report(WeightsReport(received=WeightBytes(trainer, engines)))
    assert totals_of(world.state, world.now).weight_bytes == WeightBytes(100, 30)
    engine.crash()
    world.run(world.now + 100.0)
    assert not world.state.engines
    again = world.join("a")
    own = world.state.engines[again.engine_id]
    own.weights = WeightsReport(received=WeightBytes(150, 30))  # as its registration said
    again.report(WeightsReport(received=WeightBytes(150, 40)))
    assert totals_of(world.state, world.now).weight_bytes == WeightBytes(100, 40)
