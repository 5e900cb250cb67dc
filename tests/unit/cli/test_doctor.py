"""What doctor shows of a living run and of a folder without one."""

import pytest

from rl_agent.cli import doctor
from rl_agent.errors import ConfigError
from rl_agent.testing.cluster.members import master, until


# --- on a folder ---
def test_a_living_run_is_seen_alive_and_its_end_too(tmp_path, capsys):
    with master(tmp_path, 1) as node:
        node.give_order(1, "rollout")
        assert doctor.main(["--log-path", str(tmp_path / "log")]) == 0
        printed = capsys.readouterr().out
    assert "rank 0" in printed and "alive" in printed and "nothing: the run goes on" in printed
    assert doctor.main(["--log-path", str(tmp_path / "log")]) == 0
    printed = capsys.readouterr().out
    assert "ended with status 0" in printed and "nothing: the run is done" in printed


def test_a_folder_without_a_run_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="no run of this version has begun there"):
        doctor.main(["--log-path", str(tmp_path)])


def test_a_run_whose_threads_stand_still_is_seen_as_silent(tmp_path, capsys):
    with master(tmp_path, 1) as node:
        for thread in node._threads:
            thread.stop()
        assert doctor.main(["--log-path", str(tmp_path / "log")]) == 1
    assert "sends no heartbeat" in capsys.readouterr().out


def test_stacks_of_this_host_are_printed_with_what_the_process_is_at(tmp_path, capsys):
    with master(tmp_path, 1) as node:
        node.set_doing("thinking")
        until(lambda: node.record_of(node.incarnation).doing == "thinking", "it does not say so")
        doctor.main(["--log-path", str(tmp_path / "log"), "--stacks"])
    printed = capsys.readouterr().out
    assert "at: thinking" in printed and "test_stacks_of_this_host" in printed
