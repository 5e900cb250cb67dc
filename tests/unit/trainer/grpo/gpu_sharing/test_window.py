"""The engine that shares the trainer's devices generates in a window of some length."""

import pytest

from rl_agent.trainer.grpo.gpu_sharing.window import (
    LearntWindow,
    Waits,
    WindowState,
    is_to_be_open,
    learn,
    next_length,
    window_for,
)


def seen(**changes):
    values = {"open_s": 5.0, "groups": 4, "others_ready": 2, "has_work": True}
    return WindowState(**(values | changes))


@pytest.mark.parametrize(
    ("placement", "is_open", "changes", "expected"),
    [
        pytest.param("colocated", True, {"open_s": 999.0}, True, id="colocated: to the end"),
        pytest.param("hybrid", True, {}, True, id="shorter than learnt"),
        pytest.param("hybrid", True, {"open_s": 10.0}, False, id="as long as learnt"),
        pytest.param("hybrid", True, {"has_work": False}, False, id="early: nothing to do"),
        pytest.param("hybrid", True, {"open_s": 10.0, "groups": 0}, True, id="nothing to train on yet"),
        pytest.param("hybrid", True, {"open_s": 99.0, "others_ready": 0}, True, id="nobody else"),
        pytest.param("hybrid", False, {"others_ready": 0, "groups": 0}, True, id="the others were lost"),
        pytest.param("hybrid", False, {"others_ready": 0}, False, id="trains first on what is there"),
        pytest.param("hybrid", False, {"groups": 0}, False, id="others go on"),
        pytest.param("hybrid", True, {"others_ready": None, "open_s": 99.0}, True, id="unknown: as it is"),
        pytest.param("hybrid", False, {"others_ready": None, "groups": 0}, False, id="unknown, closed"),
    ],
)
def test_a_window_is_open_while_that_helps(placement, is_open, changes, expected):
    assert is_to_be_open(placement, seen(**changes), is_open=is_open, length_s=10.0) is expected


def test_the_side_that_waits_longer_moves_the_end_of_the_window():
    assert next_length(LearntWindow(10.0), Waits(trainer_s=6.0, engines_s=0.0)).length_s == 13.0
    assert next_length(LearntWindow(10.0), Waits(trainer_s=0.0, engines_s=6.0)).length_s == 7.0
    assert next_length(LearntWindow(1.0), Waits(trainer_s=0.0, engines_s=90.0)).length_s == 0.0


def test_idleness_that_no_window_takes_away_does_not_shorten_it():
    waited = next_length(LearntWindow(10.0), Waits(trainer_s=6.0, engines_s=30.0))
    assert (waited.length_s, waited.floor_s) == (13.0, 30.0)
    too_long = next_length(waited, Waits(trainer_s=0.0, engines_s=34.0))
    assert (too_long.length_s, too_long.floor_s) == (13.0 - 0.25 * 4.0, 30.0)
    assert next_length(too_long, Waits(trainer_s=8.0, engines_s=20.0)).floor_s == 20.0


def test_a_number_of_engines_that_was_not_met_begins_with_the_nearest():
    known = {1: LearntWindow(30.0, step=0.1), 4: LearntWindow(8.0)}
    assert window_for({}, 3) == LearntWindow()
    assert window_for(known, 1) == known[1]
    assert window_for(known, 2) == LearntWindow(30.0)
    assert window_for(known, 9) == LearntWindow(8.0)


def test_without_other_engines_nothing_is_learnt():
    assert learn({2: LearntWindow(9.0)}, 0, Waits(50.0, 0.0)) == {2: LearntWindow(9.0)}


def simulate(length_s, *, work, shared, others, trained, last_s=0.0):
    """Waits and duration of an iteration; `shared`, `others` and `trained` are tokens per second.

    `last_s` of training cannot begin before all is generated.
    """
    length_s = min(length_s, work / (shared + others))
    generated_s = length_s + (work - length_s * (shared + others)) / others
    ended_s = max(length_s + work / trained, generated_s + last_s)
    return Waits(ended_s - length_s - work / trained, ended_s - generated_s), ended_s


@pytest.mark.parametrize("speed", [0.1, 1.0, 8.0], ids=["slow", "alike", "fast"])
@pytest.mark.parametrize("trained", [900.0, 1500.0, 6000.0])
@pytest.mark.parametrize("last_s", [0.0, 15.0], ids=["", "others always idle at the end"])
def test_windows_come_near_the_best_length_and_adapt_when_engines_join(speed, trained, last_s):
    """The simulated length is within 3 % of the best of all, whatever the shared engine's speed."""
    known: dict[int, LearntWindow] = {}
    for others in (1, 3, 1):
        rates = {"work": 1e5, "shared": speed * 500.0, "others": others * 500.0}
        rates |= {"trained": trained, "last_s": last_s}
        for _ in range(25):
            waits, took_s = simulate(window_for(known, others).length_s, **rates)
            known = learn(known, others, waits)
        best_s = min(simulate(0.25 * n, **rates)[1] for n in range(1200))
        assert took_s <= 1.03 * best_s
    rates |= {"others": 1500.0}
    _, took_s = simulate(window_for(known, 3).length_s, **rates)
    best_s = min(simulate(0.25 * n, **rates)[1] for n in range(1200))
    assert took_s == pytest.approx(best_s, rel=0.03)
