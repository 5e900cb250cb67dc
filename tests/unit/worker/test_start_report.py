"""A worker says every few seconds how long its engine has been starting."""

import logging

from rl_agent.worker.start_report import StartReport


def test_long_start_is_reported_every_five_seconds_with_the_log_tail(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path, now = tmp_path / "engine.log", [100.0]
    report = StartReport("host/gpu0", path, 600, clock=lambda: now[0])
    path.write_text("loading\ncompiling a graph\n")
    for now[0] in (101.0, 104.9, 105.0, 106.0, 109.9, 110.0):
        report.look()
    assert [record.getMessage() for record in caplog.records] == [
        f"engine host/gpu0 loads and compiles its model, {waited_s} s so far (at most 600);"
        " its log ends: compiling a graph"
        for waited_s in (5, 10)
    ]
