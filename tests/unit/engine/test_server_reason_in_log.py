"""The line that says what went wrong is shown of a log that ends in a traceback."""

from rl_agent.engine.server import reason_in


def test_the_last_error_is_the_reason_without_the_name_of_the_process(tmp_path):
    log = tmp_path / "engine.log"
    log.write_text(
        "(APIServer pid=12) OSError: first\n"
        "(APIServer pid=12)   File x\n"
        "(APIServer pid=12) OSError: Repo id must be a name\n"
        "(APIServer pid=12) RuntimeError: failed, see root cause above\n"
        "bye\n"
    )
    assert reason_in(log) == "OSError: Repo id must be a name"


def test_without_an_error_it_is_the_last_line(tmp_path):
    log = tmp_path / "engine.log"
    log.write_text("one\nNo module named sglang\n")
    assert reason_in(log) == "No module named sglang"
    assert reason_in(tmp_path / "absent") == "(no log)"
