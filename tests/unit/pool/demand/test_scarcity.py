"""A dearer kind is wanted while the cheap one cannot be had, within the ceilings, and given back after it."""

from dataclasses import replace

import pytest

from rl_agent.pool.demand.demand import Demand, ScarceKind, WantedRules
from rl_agent.pool.demand.records import EngineKind
from rl_agent.pool.demand.scarcity import REPORT_LASTS_S, FailedStarts, FleetReports
from rl_agent.pool.demand.wanted import WantedMemory, decide_wanted

SPOT = EngineKind("spot", price_per_hour=1.0, min_engines=0, max_engines=4, start_s=60.0)
DEAR = EngineKind("dear", price_per_hour=3.0, min_engines=0, max_engines=4, start_s=60.0)
RULES = WantedRules(
    kinds=(SPOT, DEAR),
    max_dollars_per_hour=None,
    max_dollars_per_run=None,
    waiting_share=0.1,
    finish_within_s=100.0,
    raise_after_s=0.0,
    lower_after_s=60.0,
)


def demand(spot=0, dear=0, **more):
    """Work for three engines, for as long as it takes."""
    more |= {"tokens_per_s": {"spot": 100.0, "dear": 100.0}, "present": {"spot": spot, "dear": dear}}
    return Demand(open_requests=1000, open_tokens=30_000.0, **more)


def played(*demands, rules=RULES, each_s=100.0):
    """The counts after each of the demands has lasted."""
    memory, now, counts = WantedMemory(), 0.0, []
    for lasting in demands:
        end = now + each_s
        while now < end:
            memory = decide_wanted(rules, memory, lasting, now)
            now += 5.0
        counts.append(dict(memory.wanted.counts))
    return counts, memory.wanted.reason


@pytest.mark.parametrize(
    ("spot", "retry_s", "rules", "counts"),
    [
        (0, 30.0, RULES, {"spot": 0, "dear": 3}),
        (2, 30.0, RULES, {"spot": 2, "dear": 1}),  # what is there stays
        (0, 0.0, RULES, {"spot": 1, "dear": 2}),  # a try
        (0, 30.0, replace(RULES, max_dollars_per_hour=6.0), {"spot": 0, "dear": 2}),
        (0, 30.0, replace(RULES, max_dollars_per_hour=2.0), {"spot": 0, "dear": 0}),
        (0, 30.0, replace(RULES, kinds=(SPOT,)), {"spot": 0}),
        (0, 30.0, replace(RULES, kinds=(replace(SPOT, min_engines=2), DEAR)), {"spot": 0, "dear": 3}),
        (4, 30.0, RULES, {"spot": 3, "dear": 0}),
    ],
)
def test_what_is_wanted_of_which_kind(spot, retry_s, rules, counts):
    wanted, reason = played(demand(spot, scarce={"spot": ScarceKind(retry_s)}), rules=rules)
    assert wanted == [counts]
    assert ("no more spot can be had for now" in reason) == (retry_s > 0)


def test_cheap_kind_is_retried_and_replaces_the_dear_one_when_it_returns():
    wanted, _ = played(
        demand(),
        demand(scarce={"spot": ScarceKind(30.0)}),
        demand(dear=3, scarce={"spot": ScarceKind(0.0)}),
        demand(dear=3, scarce={"spot": ScarceKind(60.0)}),  # the try failed
        demand(spot=1, dear=3),  # the next one did not
        demand(spot=3, dear=3),
    )
    assert wanted[:2] == [{"spot": 3, "dear": 0}, {"spot": 0, "dear": 3}]
    assert wanted[2]["spot"] == 1 and wanted[3] == {"spot": 0, "dear": 3}
    assert wanted[4]["spot"] == 3 and wanted[5] == {"spot": 3, "dear": 0}


@pytest.mark.parametrize(
    ("scarce", "counts"),
    [
        (ScarceKind(30.0, joined=3), {"spot": 3, "dear": 0}),  # they load weights, or register again
        (ScarceKind(30.0, 1, starting=2), {"spot": 3, "dear": 0}),  # others of the same look were refused
        (ScarceKind(0.0, joined=1), {"spot": 2, "dear": 1}),  # a try
        (ScarceKind(0.0, joined=1, starting=1), {"spot": 2, "dear": 1}),  # it is under way
    ],
)
def test_unready_machines_of_a_scarce_kind_are_kept(scarce, counts):
    wanted, _ = played(demand(spot=3), demand(scarce={"spot": scarce}))
    assert wanted == [{"spot": 3, "dear": 0}, counts]


@pytest.mark.parametrize(
    ("failed", "now", "scarce"),
    [
        ({"spot": FailedStarts(1, 50.0)}, 0.0, {}),
        ({"spot": FailedStarts(2, 50.0)}, 0.0, {"spot": ScarceKind(50.0)}),
        ({"spot": FailedStarts(2, 50.0, 3, 1)}, 50.0, {"spot": ScarceKind(0.0, 3, 1)}),
        ({"spot": FailedStarts(2, 50.0)}, REPORT_LASTS_S, {}),
        ({}, 0.0, {}),
    ],
)
def test_a_kind_is_scarce_while_reports_of_failed_starts_last(failed, now, scarce):
    reports = FleetReports()
    reports.add("f", failed, 0.0)
    assert reports.scarce(now) == scarce


def test_machines_of_two_fleets_with_one_kind_add_up():
    reports = FleetReports()
    reports.add("f", {"spot": FailedStarts(2, 50.0, 3, 1)}, 0.0)
    reports.add("g", {"spot": FailedStarts(5, 20.0, 1, 0)}, 0.0)
    assert reports.scarce(0.0) == {"spot": ScarceKind(50.0, 4, 1)}
