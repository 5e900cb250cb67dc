"""Engines wanted: tables of decisions, and rules that no history of a pool may break."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_agent.pool.demand.demand import Demand, TrainerSteps, WantedRules
from rl_agent.pool.demand.records import EngineKind
from rl_agent.pool.demand.wanted import LOOKAHEAD_S, WantedMemory, decide_wanted

SPOT = EngineKind("spot", price_per_hour=2.0, min_engines=0, max_engines=10, start_s=60.0)
RULES = WantedRules(
    kinds=(SPOT,),
    max_dollars_per_hour=None,
    max_dollars_per_run=None,
    waiting_share=0.1,
    finish_within_s=100.0,
    raise_after_s=30.0,
    lower_after_s=120.0,
)


def steps(waited_s: float, lasted_s: float = 60.0, engines: float = 2.0, **more) -> TrainerSteps:
    """A step in which each of `engines` sampled 100 tokens per second while it had requests."""
    engine_s = engines * lasted_s
    busy_s = engine_s - more.setdefault("idle_s", 0.0)
    return TrainerSteps(waited_s=waited_s, lasted_s=lasted_s, tokens=100 * busy_s, engine_s=engine_s, **more)


def demand(engines: int = 2, **more) -> Demand:
    usual = {"open_requests": 1000, "open_tokens": 1e6}
    usual |= {"tokens_per_s": {"spot": 100.0}, "present": {"spot": engines}}
    return Demand(**(usual | more))


def settled(demand: Demand, rules: WantedRules = RULES) -> WantedMemory:
    """The decision once this demand has lasted."""
    return lasted(demand, WantedMemory(), range(0, 1000, 5), rules)[-1]


def lasted(
    demand: Demand, memory: WantedMemory, times: range, rules: WantedRules = RULES
) -> list[WantedMemory]:
    """The decisions while this demand lasts."""
    memories = []
    for now in times:
        memory = decide_wanted(rules, memory, demand, float(now))
        memories.append(memory)
    return memories


@pytest.mark.parametrize(
    ("need", "count", "reason"),
    [
        (demand(0, open_requests=0, open_tokens=0.0), 0, "nothing is asked for"),
        (demand(0, tokens_per_s={}), 1, "no engine's speed is known yet"),
        (demand(steps=steps(0.0)), 2, "the trainer waited 0 s of 60"),
        (demand(steps=steps(30.0)), 4, "the trainer waited 30 s of 60"),
        (demand(steps=steps(0.0, idle_s=90.0)), 1, "the trainer waited 0 s of 60, the engines were idle for"),
        (demand(steps=steps(55.0, idle_s=84.0)), 1, "the trainer waited 55 s of 60, the engines"),
        (demand(3, steps=steps(55.0, engines=3.0, idle_s=99.0)), 2, "the trainer waited 55 s of 60, the eng"),
        (demand(3, steps=steps(55.0, engines=3.0)), 6, "the trainer waited 55 s of 60"),
        (demand(1, open_tokens=45_000.0), 5, "45,000 tokens are to be sampled within 100 s"),
        (demand(1, open_tokens=45_000.0, left_s=50.0), 9, "45,000 tokens are to be sampled within 50 s"),
        (demand(1, open_tokens=45_000.0, open_requests=3), 3, "45,000 tokens"),
        (demand(1, steps=steps(30.0, is_last=True), open_tokens=45_000.0), 5, "45,000 tokens"),
    ],
)
def test_what_is_wanted_and_why(need, count, reason):
    wanted = settled(need).wanted
    assert wanted.counts == {"spot": count}
    assert wanted.reason.startswith(f"{count} wanted: {reason}")


def test_engines_that_stay_without_any_work_stay_for_min_engines():
    rules = replace(RULES, kinds=(replace(SPOT, min_engines=1),))
    wanted = settled(demand(0, open_requests=0, open_tokens=0.0), rules).wanted
    assert wanted.reason == "1 wanted: nothing is asked for, and min_engines stay"


def test_engine_that_would_start_after_the_work_ends_is_not_requested():
    need = demand(2, open_tokens=30_000.0, start_s={"spot": 200.0})  # two engines need 150 s
    assert settled(need).wanted.counts == {"spot": 2}
    assert "more would start too late" in settled(need).wanted.reason
    assert settled(replace(need, start_s={"spot": 20.0})).wanted.counts == {"spot": 3}


def test_engine_that_has_long_been_starting_is_not_given_up():
    need = demand(2, open_tokens=30_000.0, start_s={"spot": 200.0})  # two engines need 150 s
    assert settled(replace(need, awaited_s={"spot": (120.0,)})).wanted.counts == {"spot": 3}
    assert settled(replace(need, awaited_s={"spot": (300.0,)})).wanted.counts == {"spot": 3}
    assert settled(replace(need, awaited_s={"spot": (10.0,)})).wanted.counts == {"spot": 2}


def test_trainer_price_selects_the_fleet_with_the_cheapest_step():
    def cost(count: int, price: float) -> float:
        return (price + 2.0 * count) * max(20.0, 120.0 / count)  # the engines were busy all the time

    for price in (0.5, 2.0, 20.0):
        best = min(range(1, 5), key=lambda count: cost(count, price))
        wanted = settled(demand(steps=steps(40.0, price_per_hour=price))).wanted
        assert cost(wanted.counts["spot"], price) <= 1.02 * cost(best, price)


def test_the_kind_that_is_cheapest_for_what_it_samples_is_wanted_first():
    fast = EngineKind("fast", price_per_hour=3.0, min_engines=0, max_engines=2, start_s=60.0)
    need = demand(1, tokens_per_s={"spot": 100.0, "fast": 300.0}, open_tokens=80_000.0)
    wanted = settled(need, replace(RULES, kinds=(SPOT, fast))).wanted
    assert wanted.counts == {"spot": 2, "fast": 2}


def test_a_ceiling_that_binds_is_named_and_comes_before_min_engines():
    hourly = replace(RULES, max_dollars_per_hour=5.0)
    memory = settled(demand(open_tokens=1e6), hourly)
    assert memory.wanted.counts == {"spot": 2}
    assert memory.ceiling == "max_dollars_per_hour"
    assert memory.wanted.reason.endswith("; no more for pool.scale.max_dollars_per_hour")
    at_least = replace(hourly, kinds=(replace(SPOT, min_engines=4),))
    assert settled(demand(), at_least).wanted.counts == {"spot": 2}
    assert settled(demand(other_dollars_per_hour=4.0), hourly).wanted.counts == {"spot": 0}
    of_run = replace(RULES, max_dollars_per_run=10.0)
    assert settled(demand(spent=10.0), of_run).wanted.counts == {"spot": 0}


def test_a_death_changes_nothing_of_what_is_wanted():
    need = demand(4, steps=steps(10.0, engines=4.0, price_per_hour=20.0))
    memory = settled(need)
    before = memory.wanted.counts
    died = decide_wanted(RULES, memory, replace(need, present={"spot": 3}), 2000.0)
    assert died.wanted.counts == before


def test_fewer_are_wanted_only_once_that_was_better_for_long():
    idle = demand(steps=steps(0.0, idle_s=110.0))
    memories = lasted(idle, settled(demand(steps=steps(30.0))), range(1000, 1200, 5))
    counts = [memory.wanted.counts["spot"] for memory in memories]
    assert counts[: int(RULES.lower_after_s / 5) - 1] == [4] * (int(RULES.lower_after_s / 5) - 1)
    assert counts[-1] == 1


def test_steps_that_differ_a_little_do_not_change_how_many_are_wanted():
    def idle(idle_s: float) -> Demand:
        return demand(2, steps=steps(15.0, lasted_s=30.0, idle_s=idle_s))

    assert settled(idle(18.0)).wanted.counts == {"spot": 2}
    memory = WantedMemory()
    for number, (idle_s, count) in enumerate([(12.0, 3), (18.0, 3), (30.0, 2)]):
        memory = lasted(idle(idle_s), memory, range(1000 * number, 1000 * (number + 1), 5))[-1]
        assert memory.wanted.counts == {"spot": count}


def test_engine_that_starts_slower_than_lower_after_s_is_kept():
    quick = replace(RULES, lower_after_s=20.0)
    memory = settled(demand(2, steps=steps(0.0)), quick)
    slow_start = {"spot": 100.0}
    memory = decide_wanted(quick, memory, demand(2, steps=steps(30.0), start_s=slow_start), 1000.0)
    assert memory.wanted.counts == {"spot": 4}
    fewer = demand(2, steps=steps(0.0), start_s=slow_start)
    memories = lasted(fewer, memory, range(1005, 1200, 5), quick)
    counts = [memory.wanted.counts["spot"] for memory in memories]
    assert set(counts[: (1100 - 1005) // 5]) == {4}
    assert counts[-1] == 2


def test_fleet_of_an_earlier_manager_is_kept_until_the_need_is_known():
    memory = decide_wanted(RULES, WantedMemory(), demand(5, open_requests=0, open_tokens=0.0), 0.0)
    assert memory.wanted.counts == {"spot": 5}


FAST = EngineKind("fast", price_per_hour=5.0, min_engines=1, max_engines=4, start_s=30.0)
amounts = st.floats(0, 1e7, allow_nan=False)
small = st.floats(0, 500, allow_nan=False)
demands = st.builds(
    Demand,
    open_requests=st.integers(0, 5000),
    open_tokens=amounts,
    left_s=st.none() | st.floats(-10, 5000),
    steps=st.none()
    | st.builds(
        lambda waited, busy, tokens, engines, idle, price, is_last: TrainerSteps(
            waited, waited + busy + 0.1, tokens, engines * (waited + busy + 0.1), idle, price, is_last
        ),
        small,
        small,
        amounts,
        st.floats(0, 20),
        small,
        st.sampled_from([0.0, 1.0, 100.0]),
        st.booleans(),
    ),
    tokens_per_s=st.dictionaries(st.sampled_from(["", "spot", "fast"]), st.floats(0, 1e4)),
    present=st.dictionaries(st.sampled_from(["", "spot", "fast"]), st.integers(0, 12)),
    start_s=st.dictionaries(st.sampled_from(["spot", "fast"]), st.floats(0, 7200)),
    requests_each=st.integers(1, 100),
    other_dollars_per_hour=st.floats(0, 10),
    spent=st.floats(0, 60),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(demands, min_size=1, max_size=40))
def test_never_above_max_never_above_a_ceiling_and_no_flapping(history):
    rules = replace(RULES, kinds=(SPOT, FAST), max_dollars_per_hour=18.0, max_dollars_per_run=50.0)
    memory, times = WantedMemory(), itertools.count(0, 7)
    raised_at = {"spot": float("-inf"), "fast": float("-inf")}
    last_raise = float("-inf")
    for need, now in zip(history, times, strict=False):
        before = memory.wanted.counts if memory.wanted else None
        memory = decide_wanted(rules, memory, need, float(now))
        counts = memory.wanted.counts
        dollars = 2.0 * counts["spot"] + 5.0 * counts["fast"]
        assert 0 <= counts["spot"] <= 10
        assert 0 <= counts["fast"] <= 4
        if dollars:
            assert dollars + need.other_dollars_per_hour <= 18.0 + 1e-6
            assert need.spent + (dollars + need.other_dollars_per_hour) * LOOKAHEAD_S / 3600 <= 50.0 + 1e-6
        if before is None:
            continue
        is_free = need.other_dollars_per_hour + dollars <= 10 and need.spent < 40
        for kind, number in counts.items():
            if number > before[kind]:
                is_least = number == {"spot": SPOT, "fast": FAST}[kind].min_engines
                assert is_least or now - last_raise >= rules.raise_after_s
                raised_at[kind] = now
            elif number < before[kind] and is_free:
                is_forced = 2.0 * before["spot"] + 5.0 * before["fast"] + need.other_dollars_per_hour > 18.0
                assert is_forced or now - raised_at[kind] >= rules.lower_after_s - 7
        if any(number > before[kind] for kind, number in counts.items()):
            last_raise = now
