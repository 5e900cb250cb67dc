"""A manager's status becomes what a reconciler decides by, or one line about what is wrong with it."""

import pytest

from rl_agent.errors import RetryLater
from rl_agent.pool.scale.manager_link import view_of
from rl_agent.pool.scale.reconcile import PoolEngine
from rl_agent.pool.scale.records import EngineKind, Wanted

ENGINES = [
    {"name": "rl-1-1", "running": 3, "state": "draining"},
    {"name": "x", "running": 0, "state": "ready"},
]
KIND = {"name": "spot", "price_per_hour": 1, "min_engines": 0, "max_engines": 4, "start_s": 60.0}
WANTED = {"counts": {"spot": 2}, "reason": "2 wanted", "kinds": [KIND], "present": {}, "spent": 0.0}
URL = "http://127.0.0.1:5000"


def test_engines_kinds_and_what_is_wanted_are_read():
    view = view_of({"engines": ENGINES, "wanted": WANTED}, URL)
    assert view.engines["rl-1-1"] == PoolEngine("rl-1-1", 3, True)
    assert not view.engines["x"].is_draining
    assert view.wanted == Wanted({"spot": 2}, "2 wanted")
    assert view.kinds == (EngineKind("spot", 1.0, 0, 4, 60.0),)


@pytest.mark.parametrize("wanted", [None, {**WANTED, "kinds": [], "counts": {}}])
def test_a_manager_that_knows_no_kinds_wants_nothing_to_change(wanted):
    view = view_of({"engines": ENGINES, "wanted": wanted}, URL)
    assert view.wanted is None and view.kinds == ()


@pytest.mark.parametrize(
    "status", [{}, {"engines": [{}]}, {"engines": [], "wanted": {**WANTED, "counts": {"spot": "many"}}}]
)
def test_a_status_that_is_none_is_one_line(status):
    with pytest.raises(RetryLater, match=r"^http://127.0.0.1:5000/status cannot be read: .*"):
        view_of(status, URL)
