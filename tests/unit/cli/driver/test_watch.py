"""`watch` waits for the training on this node, and gives up as soon as the run lost what it needs."""

import os
import subprocess
import sys

import pytest

from rl_agent.cli.driver import _wait_lines, watch
from rl_agent.cluster.protocol.records import Decision
from rl_agent.errors import RetryLater
from rl_agent.monitor.progress import LINE_CHARACTERS
from tests.support.rollout_setup import make_plan


class Node:
    """A member that is told what it sees."""

    def __init__(self, *, is_master=True, decision=None, error=None):
        self.is_master, self._decision, self._error, self.doing = is_master, decision, error, []

    def decision(self, iteration, phase):
        assert (iteration, phase) == (3, "train-8")
        return self._decision

    def check(self):
        if self._error:
            raise self._error

    def set_doing(self, text):
        self.doing.append(text)


@pytest.fixture
def watched(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "_LOOK_S", 0.01)
    make_plan(tmp_path, engine_url="http://127.0.0.1:1", model=tmp_path).write(tmp_path / "plan.json")

    def wait(pid, node, timeout_s="60"):
        words = ["--plan", str(tmp_path / "plan.json"), "--pid", str(pid), "--timeout-s", timeout_s]
        return watch.main([*words, "--iteration", "3", "--phase", "train-8"], node)

    return wait


def test_it_ends_with_the_process_also_with_one_that_is_gone(watched):
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        assert watched(process.pid, Node()) == 0
    assert watched(process.pid, Node()) == 0


def test_at_the_deadline_it_gives_up(watched):
    assert watched(os.getpid(), Node(), "0.02") == 124


def test_a_decision_that_comes_first_names_the_node_that_was_lost(watched, capsys):
    lost = Decision(outcome="lost", lost=("rank 1 (node-1)",))
    assert watched(os.getpid(), Node(decision=lost)) == 75
    assert "iteration 3: train-8 cannot end: rank 1 (node-1)" in capsys.readouterr().err


def test_a_run_that_broke_off_ends_the_wait(watched):
    with pytest.raises(RetryLater, match="the master is silent"):
        watched(os.getpid(), Node(error=RetryLater("the master is silent")))


@pytest.mark.parametrize(
    ("is_master", "message"), [(True, "waiting for the first"), (False, "rank 0 shows the steps")]
)
def test_a_training_without_news_is_reported_as_going_on(watched, monkeypatch, capsys, is_master, message):
    monkeypatch.setattr(_wait_lines, "next_line_s", lambda waited_s: 0.0)
    assert watched(os.getpid(), Node(is_master=is_master), "0.5") == 124
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[0] and max(map(len, lines)) <= LINE_CHARACTERS
