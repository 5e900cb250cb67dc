"""`await-version` waits for what a phase needs of the streaming trainer, or says why it will not come."""

import json
import os
from dataclasses import asdict

import pytest

from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver import await_version
from rl_agent.cluster.protocol.records import Decision
from rl_agent.system.files import write_whole
from rl_agent.trainer.grpo.checkpoint.states import StreamProgress
from rl_agent.trainer.grpo.launch import progress_file
from tests.support.rollout_setup import make_plan

GONE = 2**22 + 1
"""No process has this number."""


class Node:
    def __init__(self, plan, *, is_master=True, **seen):
        self.plan, self.is_master = plan, is_master
        self.decided, self.failed = seen.get("decided"), seen.get("failed", ())
        self.straggling, self.has_newer_order = seen.get("straggling", ""), seen.get("has_newer_order", False)
        self.finished = []

    def set_doing(self, text):
        pass

    def check(self):
        pass

    def decision(self, *key):
        return self.decided

    def who_failed(self, *key):
        return self.failed

    def others_straggling(self, key):
        return self.straggling

    def finish(self, *flag):
        self.finished.append(flag)
        self.has_newer_order = True


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setattr(await_version, "_LOOK_S", 0.0)
    words = ("trainer=grpo", "rollout.group_size=2", "trainer.timeout_s=0.05")
    plan = make_plan(tmp_path, *words, engine_url="http://127.0.0.1:1", model=tmp_path)
    plan.write(tmp_path / "plan.json")
    return plan


def publish(plan, iteration, version):
    path = progress_file(plan)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(StreamProgress(os.getpid(), iteration, version))))


def wait(plan, node, tmp_path, iteration=3, phase="rollout", pid=None, training="1/train-1"):
    words = ["--plan", str(tmp_path / "plan.json"), "--iteration", str(iteration), "--phase", phase]
    pid = os.getpid() if pid is None else pid
    return await_version.main([*words, "--pid", str(pid), "--training", training], node)


@pytest.mark.parametrize("pid", [None, GONE], ids=["living", "ended"])
def test_published_versions_count_whatever_becomes_of_the_trainer(plan, tmp_path, pid):
    publish(plan, 3, 7)
    version = wait(plan, Node(plan), tmp_path, pid=pid)
    assert version.status == 0 and version.fields["min_weight_version"] <= 7


def test_at_the_deadline_the_process_and_the_key_are_named(plan, tmp_path, capsys):
    assert wait(plan, Node(plan), tmp_path) == VerbResult(status=124)
    message = capsys.readouterr().err
    assert f"process {os.getpid()}" in message
    assert "trainer.timeout_s=0.05; it is after no iteration" in message


@pytest.mark.parametrize(
    ("seen", "end", "message"),
    [
        ({"decided": Decision(outcome="lost", lost=("rank 1",))}, "lost", "the trainer ended, for rank 1,"),
        ({"failed": ("rank 1 (b)",)}, "failed", "the trainer ended on rank 1 (b)"),
    ],
)
def test_a_trainer_ended_on_another_node_is_reported(plan, tmp_path, capsys, seen, end, message):
    publish(plan, 1, 1)
    assert wait(plan, Node(plan, **seen), tmp_path) == VerbResult({"end": end}, 75)
    assert f"{message} before iteration" in capsys.readouterr().err


def test_a_worker_whose_part_ended_reports_it_and_waits_for_its_order(plan, tmp_path):
    node = Node(plan, is_master=False)
    assert wait(plan, node, tmp_path, pid=GONE) == VerbResult({"end": "lost"}, 75)
    assert node.finished == [(1, "train-1", "failed")]


def test_a_trainer_of_this_node_alone_that_ended_has_failed(plan, tmp_path):
    assert wait(plan, Node(plan), tmp_path, pid=GONE, training="") == VerbResult({"end": "failed"}, 75)
