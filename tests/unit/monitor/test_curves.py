"""The picture of a run shows what its metrics file says."""

import pytest

from rl_agent.monitor import metrics
from rl_agent.monitor.curves import PANELS, Curve, curves_of, draw

OF_TITLE = {panel.title: panel for panel in PANELS}


def test_a_panel_has_a_curve_for_each_of_its_numbers_that_was_recorded():
    records = [
        {"iteration": 1, "split": "test", "test/success_rate": 0.25},
        {"iteration": 1, "split": "train", "train/success_rate": 0.5},
        {"iteration": 2, "split": "train", "train/success_rate": 0.75, "train/reward_mean": 0.8},
    ]
    assert curves_of(OF_TITLE["success rate"], records) == [
        Curve("evaluation", ((1, 0.25),)),
        Curve("rollout", ((1, 0.5), (2, 0.75))),
    ]


def test_an_iteration_run_again_is_drawn_once_with_its_later_numbers():
    records = [{"iteration": 1, "train/success_rate": value} for value in (0.1, 0.9)]
    assert curves_of(OF_TITLE["success rate"], records) == [Curve("rollout", ((1, 0.9),))]


def test_the_loss_is_drawn_over_optimizer_steps_and_not_over_iterations():
    records = [
        {"iteration": 1, "update_step": 1, "update_step/loss": 2.0},
        {"iteration": 1, "update_step": 2, "update_step/loss": 1.5},
        {"iteration": 1, "update/loss": 1.75},
    ]
    assert curves_of(OF_TITLE["loss of each optimizer step"], records) == [
        Curve("training", ((1, 2.0), (2, 1.5)))
    ]


def test_every_named_reward_has_a_curve_with_its_name():
    records = [{"iteration": n, "train/reward/format": n / 2, "train/reward/answer": 1.0} for n in (1, 2)]
    assert curves_of(OF_TITLE["named rewards (rollout)"], records) == [
        Curve("answer", ((1, 1.0), (2, 1.0))),
        Curve("format", ((1, 0.5), (2, 1.0))),
    ]


@pytest.mark.parametrize("panels", [1, len(PANELS)])
def test_the_picture_is_drawn_with_one_panel_or_with_all(tmp_path, panels):
    for panel in PANELS[:panels]:
        for name in panel.curves:
            metrics.append(tmp_path / "metrics.jsonl", {panel.x: 1, name: 0.5})
    assert draw(tmp_path / "metrics.jsonl", tmp_path / "out.png", "run")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "out.png"]


def test_without_a_number_nothing_is_drawn(tmp_path):
    metrics.append(tmp_path / "metrics.jsonl", {"iteration": 1, "something/else": 1.0})
    assert not draw(tmp_path / "metrics.jsonl", tmp_path / "out.png", "run")
    assert not (tmp_path / "out.png").exists()


def test_a_picture_leaves_out_what_is_0_throughout_except_outcomes(tmp_path):
    metrics.append(tmp_path / "metrics.jsonl", {"iteration": 1, "train/failed_share": 0.0})
    assert not draw(tmp_path / "metrics.jsonl", tmp_path / "out.png", "run")
    metrics.append(tmp_path / "metrics.jsonl", {"iteration": 1, "train/success_rate": 0.0})
    assert draw(tmp_path / "metrics.jsonl", tmp_path / "out.png", "run")
