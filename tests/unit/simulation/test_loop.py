"""A simulated trainer over a simulated pool, an iteration after the other."""

from functools import partial

import pytest

from rl_agent.pool.scheduler.machine import check
from rl_agent.simulation.loop import Loop
from rl_agent.simulation.scenario import simulate
from rl_agent.simulation.world import RentedPool
from tests.unit.simulation.scenarios import ALWAYS_TWO, kills, scenario


def test_dealt_samples_make_the_same_steps_and_wait_for_more_groups():
    words = ("mini_batches=4",)
    arriving = simulate(scenario(ALWAYS_TWO, *words), "elastic")
    dealt = simulate(scenario(ALWAYS_TWO, *words, "order=shuffled"), "elastic")
    assert dealt.tokens_per_s < arriving.tokens_per_s
    assert dealt.waiting_share > arriving.waiting_share
    case = simulate(scenario(ALWAYS_TWO, "order=shuffled"), "elastic")  # of one step everything is part
    assert case.tokens_per_s == pytest.approx(simulate(scenario(), "elastic").tokens_per_s, rel=1e-6)


def test_staleness_lets_generation_and_training_overlap():
    strict, loose = (
        simulate(scenario(), "elastic"),
        simulate(scenario(ALWAYS_TWO, "max_staleness=1"), "elastic"),
    )
    assert loose.iterations > strict.iterations
    assert loose.waiting_share < strict.waiting_share


def test_the_machine_is_whole_after_an_hour_of_a_bad_trace():
    case = scenario(kills(hours=0.3, every_s=45), hours=0.3)
    loop = Loop(case.work, case.trainer, 1, can_continue=True)
    world = RentedPool(rules=case.rules, chunk=case.chunk, on_ended=loop.ended)
    for number, change in enumerate(case.trace):
        if change.is_join:
            world.at(change.at_s, partial(world.rent, f"m{number}", case.engine))
        else:
            world.at(change.at_s, partial(world.lose, with_notice=False))
    loop.begin(world)
    for second in range(0, 1000, 10):
        world.run(float(second))
        check(world.state)
    assert world.state.account.failed == 0


def test_turns_wait_for_the_environment_and_read_only_what_is_new():
    case = scenario(ALWAYS_TWO, "turns=3", "environment_s=20", "observation_tokens=640", "iterations=1")
    asked_lengths, work = [], case.work
    loop = Loop(work, case.trainer, 0, can_continue=True, last_iteration=1)

    class NotingPool(RentedPool):
        def submit(self, order, length):
            asked_lengths.append((self.now, order, length))
            RentedPool.submit(self, order, length)

    world = NotingPool(rules=case.rules, chunk=case.chunk, on_ended=loop.ended)
    for name in ("a", "b"):
        world.rent(name, case.engine)
    loop.begin(world)
    while not loop.has_ended:
        world.run(world.now + 10)

    assert len(asked_lengths) == 3 * 32
    turns = [
        (at, order, length)
        for at, order, length in asked_lengths
        if order.request_id.name.startswith("1/0/0/")
    ]
    sizes = [len(order.prompt_token_ids) for _, order, _ in turns]
    lengths = [length for _, _, length in turns]
    assert sizes == [16, 16 + 20 + lengths[0], 16 + 40 + sum(lengths[:2])]
    assert [at for at, _, _ in turns] == sorted(at for at, _, _ in turns)
    pauses = work.pauses(1)
    assert turns[1][0] > pauses[0] and turns[2][0] > pauses[0] + pauses[1]
    trained = 32 * (512 + 2 * 640) + 32 * sum(length for _, _, length in asked_lengths)
    assert loop.trained_tokens == trained


def test_slow_environments_leave_engines_idle():
    quick, slow = (
        simulate(scenario(ALWAYS_TWO, "turns=4", "mean_tokens=200", f"environment_s={seconds}"), "elastic")
        for seconds in (0, 30)
    )
    assert slow.iterations < quick.iterations
    assert slow.engines_idle_share > quick.engines_idle_share
