"""The learning benchmark counts no seed whose run did not do what it is to show."""

import json

import pytest

from benchmarks.trainer.learning import check_run

DONE = {"train/episodes": 8, "train/completed_share": 1.0, "train/success_rate": 0.5}
UPDATE = {"update/loss": 0.0}
ENGINES = (
    {"at": 1.0, "id": "a", "state": "ready", "reason": ""},
    {"at": 2.0, "id": "a", "state": "gone", "reason": "its lease of 5 s is over: no answer"},
)
JOINED = {"at": 3.0, "id": "b", "state": "ready", "reason": ""}


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run(folder, *records, engines):
    write_lines(folder / "run" / "metrics.jsonl", [{"iteration": 1, **record} for record in records])
    write_lines(folder / "run" / "runs" / "r" / "pool-1.history.jsonl", engines)
    (folder / "spot.csv").touch()


def test_a_run_with_rewards_updates_and_a_replaced_engine_counts(tmp_path):
    write_run(tmp_path, DONE, UPDATE, engines=(*ENGINES, JOINED))
    check_run(tmp_path, 1)


@pytest.mark.parametrize(
    ("changed", "update", "engines", "complaint"),
    [
        ({"train/success_rate": 0.0}, UPDATE, (*ENGINES, JOINED), "no episode has earned a reward"),
        ({"train/completed_share": 0.875}, UPDATE, (*ENGINES, JOINED), r"lost: \[\(1, 'train'\)\]"),
        ({}, {}, (*ENGINES, JOINED), "updates are missing"),
        ({}, UPDATE, ENGINES, "none joined afterwards"),
        ({}, UPDATE, (ENGINES[1], JOINED), "no engine was killed while it served"),
    ],
)
def test_a_run_that_lacks_one_of_these_does_not(tmp_path, changed, update, engines, complaint):
    write_run(tmp_path, DONE | changed, update, engines=engines)
    with pytest.raises(SystemExit, match=complaint):
        check_run(tmp_path, 1)
