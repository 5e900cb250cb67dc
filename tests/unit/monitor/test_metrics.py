"""The file of a run's metrics: whole lines, whatever was cut before and whatever is not a number."""

import math
import os

import pytest

from rl_agent.monitor import metrics


def test_numbers_that_are_not_finite_are_left_out_and_the_rest_stays(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    metrics.append(path, {"mean": math.nan, "most": math.inf, "n": 0, "name": "ä", "is_on": True})
    assert list(metrics.read(path)) == [{"n": 0, "name": "ä", "is_on": True}]
    assert path.read_bytes().count(b"\n") == 1


def test_a_line_after_a_torn_one_begins_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2')
    metrics.append(path, {"n": 3})
    assert list(metrics.read(path)) == [{"n": 1}, {"n": 3}]


def test_a_line_that_is_still_being_written_is_not_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2}')
    assert list(metrics.read(path)) == [{"n": 1}]
    assert list(metrics.read(tmp_path / "none")) == []


def test_a_disk_that_takes_half_of_a_line_is_an_error_and_no_lost_metric(tmp_path, monkeypatch):
    path, write = tmp_path / "metrics.jsonl", os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:5]))
    with pytest.raises(OSError, match="No space left on device"):
        metrics.append(path, {"n": 1})
    monkeypatch.setattr(os, "write", write)
    metrics.append(path, {"n": 2})
    assert list(metrics.read(path)) == [{"n": 2}]


@pytest.mark.parametrize("line", [b"", b'{"n": 1', b"\xff"], ids=repr)
def test_malformed_records_are_none(line):
    assert metrics.parse(line) is None
