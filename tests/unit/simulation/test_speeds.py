"""Speeds of engines by model and device."""

import pytest

from rl_agent.simulation.speeds import SHAPES, Device, engine_speed


def test_the_speeds_of_one_h200_are_those_that_were_measured():
    speed = engine_speed(
        SHAPES["1.7b"], Device(), gpus=1, start_s=100, link_gbit_per_s=50, max_running=512, mean_context=513
    )
    measured = {1: 479, 64: 17_707, 512: 30_631}
    rates = {n: n / speed.decoding_s(n, n * 513) for n in measured}
    assert rates == pytest.approx(measured, rel=0.08)
