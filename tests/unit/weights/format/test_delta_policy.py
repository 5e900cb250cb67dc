"""Deltas are made while they save time."""

import pytest

from rl_agent.weights.format import delta_policy
from rl_agent.weights.format.delta_policy import DeltaCost, DeltaSwitch
from tests.unit.weights.weight_versions import settings

AUTO = settings("auto", link_gbit_per_s=8e-7)  # 100 bytes/s


def test_a_delta_pays_if_it_saves_more_time_on_the_link_than_it_takes():
    assert DeltaCost(1000, 100, encode_s=2.0, decode_s=2.0).saved_s(100.0) == pytest.approx(5.0)
    assert DeltaCost(1000, 100, encode_s=5.0, decode_s=5.0).saved_s(100.0) == pytest.approx(-1.0)


def test_deltas_that_do_not_pay_pause_for_a_while_and_are_tried_again(monkeypatch):
    monkeypatch.setattr(delta_policy, "RETRY_AFTER", 2)
    switch, is_on = DeltaSwitch(), []
    for _ in range(6):
        is_on.append(switch.is_on(AUTO))
        slow = DeltaCost(1000, 900, encode_s=3.0, decode_s=3.0)
        switch = switch.after(AUTO, slow if is_on[-1] else None)
    assert is_on == [True, False, False, True, False, False]


def test_deltas_that_pay_stay_on():
    switch = DeltaSwitch().after(AUTO, DeltaCost(1000, 10, encode_s=0.1, decode_s=0.1))
    assert switch.is_on(AUTO)
