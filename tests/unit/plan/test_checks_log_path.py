"""Whatever lies at a path that a person gave, the answer is one line."""

import os

import pytest

from rl_agent.cli.__main__ import main
from rl_agent.errors import ConfigError
from rl_agent.plan.checks import check_log_path


def loop(path):
    path.symlink_to(path.name)
    return path / "log"


def dangling(path):
    path.symlink_to("nowhere")
    return path


def a_file(path):
    path.write_text("")
    return path / "log"


def a_fifo(path):
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (loop, "is a broken link, or part of a circle"),
        (dangling, "is a broken link"),
        (a_file, "not a folder"),
        (a_fifo, "not a folder"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_log_path_that_can_be_no_folder_is_named(tmp_path, make, problem):
    with pytest.raises(ConfigError, match=f"--log-path .*{problem}"):
        check_log_path(make(tmp_path / "x"))


def test_a_log_path_of_an_earlier_run_is_taken(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "model.pt").symlink_to("checkpoints")
    check_log_path(tmp_path)
    check_log_path(tmp_path / "new" / "deeper")


@pytest.mark.parametrize("verb", ["report", "doctor", "rollback", "trajectories list", "plan"])
@pytest.mark.parametrize("kind", ["name too long", "loop", "file"])
def test_no_path_ends_a_verb_in_a_traceback(tmp_path, capsys, verb, kind):
    path = tmp_path / ("a" * 300 if kind == "name too long" else kind)
    if kind == "loop":
        path.symlink_to(path.name)
    elif kind == "file":
        path.write_text("")
    words = [*verb.split(), "--log-path", str(path)]
    if verb == "plan":
        words += ["--data-path", str(tmp_path), "--rl-phase", "update", "--dry-run"]
    assert main(words) in (2, 78)
    assert len(capsys.readouterr().err.splitlines()) == 1
