"""The pool and a trainer in virtual time: what they do is what their speeds and the trace say."""

import itertools
from dataclasses import replace
from functools import partial

import pytest

from rl_agent.pool.scheduler.machine import check
from rl_agent.simulation.config import read_config, scenario_of
from rl_agent.simulation.loop import Loop
from rl_agent.simulation.scenario import SETUPS, Scenario, simulate
from rl_agent.simulation.speeds import SHAPES, Device, EngineSpeed, engine_speed
from rl_agent.simulation.spot import Change
from rl_agent.simulation.work import Work, drawn_trace, mean_machines
from rl_agent.simulation.world import RentedPool
from rl_agent.testing.pool_setup import later_wins
from rl_agent.trainer.data.order import Arrival

SMALL = (
    "prompts=8", "group_size=4", "mean_tokens=1500", "longest=4096", "trainer_gpus=2", "engine_gpus=1",
    "trainer_price=20", "engine_price=2", "on_demand_price=8", "max_running=16", "switch_s=5",
    "engine_start_s=20", "resolution_s=2",
)  # fmt: skip
ALWAYS_TWO = [Change(0.0, is_join=True), Change(0.0, is_join=True)]


def scenario(trace=ALWAYS_TWO, *words: str, hours: float = 0.25) -> Scenario:
    return scenario_of(read_config(later_wins((*SMALL, f"hours={hours}", *words))), trace, "trace")


def kills(*, hours: float, every_s: float) -> list[Change]:
    """Two machines, of which the older one vanishes and another comes in its place."""
    changes = list(ALWAYS_TWO)
    for number in range(1, int(hours * 3600 / every_s)):
        changes += [Change(number * every_s, is_join=False), Change(number * every_s, is_join=True)]
    return changes


@pytest.mark.parametrize("setup", SETUPS)
def test_the_same_seed_gives_the_same_outcome_and_another_seed_another(setup):
    trace = kills(hours=0.25, every_s=120)
    first = simulate(scenario(trace), setup)
    assert first.iterations > 2
    assert simulate(scenario(trace), setup) == first
    assert simulate(scenario(trace, "seed=1"), setup) != first


def test_an_engine_needs_the_steps_of_its_longest_request():
    speed = EngineSpeed(0.01, 0.001, 0.0, 0.0, 0.0, 1.0, 0.0, capacity=8)
    ended: dict[str, float] = {}
    world = RentedPool(
        rules=scenario().rules,
        chunk=1,
        on_ended=lambda request: ended.update({request.request_id.name: world.now}),
    )
    world.join("a", speed, weight_version=0)
    work = Work(4, 1, 1, 100, 1000, 0.5, 1, 0)
    loop = Loop(work, scenario().trainer, 0, can_continue=True)
    loop.world, loop.submitted = world, 1
    for number, length in enumerate((100, 300)):
        world.submit(loop._order(number, 0, length, 0), length)
    world.run(100.0)
    assert ended == pytest.approx({"1/0/0": 100 * 0.012, "1/1/0": 100 * 0.012 + 200 * 0.011}, abs=0.01)


def test_the_speeds_of_one_h200_are_those_that_were_measured():
    speed = engine_speed(
        SHAPES["1.7b"], Device(), gpus=1, start_s=100, link_gbit_per_s=50, max_running=512, mean_context=513
    )
    measured = {1: 479, 64: 17_707, 512: 30_631}
    found = {n: n / speed.decoding_s(n, n * 513) for n in measured}
    assert found == pytest.approx(measured, rel=0.08)


def test_taking_turns_costs_generation_then_training_then_publishing():
    one = scenario()
    found = simulate(one, "static")
    tokens = sum(one.work.lengths(1)) + 32 * one.work.prompt_tokens
    of_training = one.trainer.seconds_for([(length + 512, length) for length in one.work.lengths(1)])
    at_least = 2 * one.trainer.switch_s + of_training + one.trainer.update_s + one.trainer.publish_s
    step_s = found.hours * 3600 / found.iterations
    assert step_s > at_least
    assert found.tokens_per_s * step_s == pytest.approx(tokens, rel=0.15)
    assert found.cost_per_step == pytest.approx(20 * step_s / 3600)
    assert found.engines == 0


def test_every_token_is_trained_on_once_whatever_happens_to_the_machines():
    for setup in ("elastic", "elastic_recompute"):
        one = scenario(kills(hours=0.25, every_s=60))
        found = simulate(one, setup)
        asked = sum(
            512 + 32 * max(1, round(length / 32))
            for iteration in range(1, found.iterations + 1)
            for length in one.work.lengths(iteration)
        )
        assert found.tokens_per_s * found.hours * 3600 == pytest.approx(asked)
        assert found.engine_deaths > 5


def test_moving_requests_with_their_tokens_loses_less_than_computing_them_again():
    one = scenario(kills(hours=0.5, every_s=37), hours=0.5)
    moved, computed_again = simulate(one, "elastic"), simulate(one, "elastic_recompute")
    assert moved.lost_share < 0.02 < computed_again.lost_share
    assert moved.iterations > computed_again.iterations
    assert moved.prefilled_again_tokens > computed_again.prefilled_again_tokens


@pytest.mark.parametrize(("prompts", "steps"), [(8, 3), (8, 8), (7, 4), (3, 5), (10, 1)])
def test_steps_that_take_groups_as_they_come_end_where_those_of_the_trainer_do(prompts, steps):
    work = scenario(ALWAYS_TWO, f"prompts={prompts}", f"mini_batches={steps}").work
    arrival = Arrival(prompts, steps)
    ends = list(itertools.accumulate(arrival.size(step) for step in range(min(steps, prompts))))
    assert [groups for groups in range(1, prompts + 1) if work.ends_step(groups)] == ends


def test_dealt_samples_make_the_same_steps_and_wait_for_more_groups():
    words = ("mini_batches=4",)
    arriving = simulate(scenario(ALWAYS_TWO, *words), "elastic")
    dealt = simulate(scenario(ALWAYS_TWO, *words, "order=shuffled"), "elastic")
    assert dealt.tokens_per_s < arriving.tokens_per_s
    assert dealt.waiting_share > arriving.waiting_share
    one = simulate(scenario(ALWAYS_TWO, "order=shuffled"), "elastic")  # of one step everything is part
    assert one.tokens_per_s == pytest.approx(simulate(scenario(), "elastic").tokens_per_s, rel=1e-6)


def test_every_sample_is_dealt_to_one_step_and_steps_are_alike():
    work = scenario(ALWAYS_TWO, "mini_batches=3").work
    steps = work.steps_of(1)
    assert [len(of) for of in steps] == [work.group_size] * work.prompts
    assert sorted(sum(of.count(step) for of in steps) for step in range(3)) == [10, 11, 11]
    assert work.steps_of(1) == steps != work.steps_of(2)


def test_a_notice_saves_what_a_sudden_end_loses():
    sudden = kills(hours=0.25, every_s=60)
    told = [replace(change, with_notice=True) for change in sudden]
    assert (
        simulate(scenario(told), "elastic").lost_tokens <= simulate(scenario(sudden), "elastic").lost_tokens
    )
    assert simulate(scenario(told), "elastic").engine_deaths == 0


def test_machines_are_paid_from_their_first_moment_to_their_last():
    trace = [Change(0.0, is_join=True), Change(300.0, is_join=True), Change(600.0, is_join=False)]
    found = simulate(scenario(trace, "trainer_price=0", "engine_price=3600"), "elastic")
    end_s = found.hours * 3600
    machine_s = min(600.0, end_s) + end_s - 300.0
    assert found.cost_per_step * found.iterations == pytest.approx(machine_s)


def test_staleness_lets_generation_and_training_overlap():
    strict, loose = (
        simulate(scenario(), "elastic"),
        simulate(scenario(ALWAYS_TWO, "max_staleness=1"), "elastic"),
    )
    assert loose.iterations > strict.iterations
    assert loose.waiting_share < strict.waiting_share


def test_the_machine_is_whole_after_an_hour_of_a_bad_trace():
    one = scenario(kills(hours=0.3, every_s=45), hours=0.3)
    loop = Loop(one.work, one.trainer, 1, can_continue=True)
    world = RentedPool(rules=one.rules, chunk=one.chunk, on_ended=loop.ended)
    for number, change in enumerate(one.trace):
        if change.is_join:
            world.at(change.at_s, partial(world.rent, f"m{number}", one.engine))
        else:
            world.at(change.at_s, partial(world.lose, with_notice=False))
    loop.begin(world)
    for second in range(0, 1000, 10):
        world.run(float(second))
        check(world.state)
    assert world.state.account.failed == 0


def test_drawn_lengths_have_the_mean_that_was_asked_for_and_a_tail():
    work = Work(512, 8, 512, 5000, 14_336, 0.8, 1, seed=4)
    lengths = work.lengths(1)
    assert sum(lengths) / len(lengths) == pytest.approx(5000, rel=0.03)
    assert max(lengths) == 14_336 and min(lengths) >= 1
    assert lengths == work.lengths(1) != work.lengths(2)


def test_a_drawn_trace_has_as_many_machines_as_its_times_say():
    trace = drawn_trace(hours=500, most=8, up_s=3 * 3600, down_s=3600, seed=1)
    assert mean_machines(trace, 500 * 3600) == pytest.approx(6.0, rel=0.05)
    count = 0
    for change in trace:
        count += 1 if change.is_join else -1
        assert 0 <= count <= 8
