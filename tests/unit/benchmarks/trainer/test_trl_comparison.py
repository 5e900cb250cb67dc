"""The comparison with TRL counts what it says it counts."""

import json

from benchmarks.trainer.trl_comparison import Point, seconds_of_ours, spread, summary


def test_evaluations_are_left_out_of_the_seconds(tmp_path):
    timeline = tmp_path / "timeline.jsonl"
    spans = [
        ("engine_start", 1, 5, 20), ("evaluate", 1, 20, 24), ("rollout", 1, 25, 40), ("update", 1, 40, 42),
        ("evaluate", 2, 42, 52), ("rollout", 2, 53, 60), ("update", 2, 60, 65),
    ]  # fmt: skip
    lines = (
        json.dumps({"name": name, "iteration": i, "start": start, "end": end}) + "\n"
        for name, i, start, end in spans
    )
    timeline.write_text("".join(lines))

    assert seconds_of_ours(timeline, 2.0, 2) == [25 - 2 - 4, 42 - 2 - 4, 65 - 2 - 4 - 10]
    assert seconds_of_ours(timeline, 2.0, 2, overlaps=True) == [20 - 2, 42 - 2, 65 - 2]


def test_the_summary_is_a_mean_over_the_seeds():
    runs = {
        (seed, side): [Point(0, 10.0, 0.5, None), Point(2048, 40.0, 0.5 + gain, 0.4)]
        for seed, gain in ((0, 0.1), (1, 0.2))
        for side in ("TRL", "ours")
    }
    _, trl, ours = summary(runs).splitlines()
    assert trl.split() == ["TRL", "2", "10", "30.0", "+15.0", "+30.0"]
    assert ours.split()[1:] == trl.split()[1:]


def test_the_spread_is_of_the_paired_differences():
    accuracies = {"TRL": (0.50, 0.60), "ours": (0.52, 0.64)}
    runs = {
        (seed, side): [Point(0, 10.0, values[seed], None)]
        for side, values in accuracies.items()
        for seed in (0, 1)
    }
    _, line = spread(runs).splitlines()
    assert line.split() == ["0", "55.0", "7.1", "58.0", "8.5", "+3.0", "(1.0)"]
