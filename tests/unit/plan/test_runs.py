"""The runs under a log path: which one is the latest, and which of an earlier one's processes still live."""

import os
import subprocess
import sys

import pytest

from rl_agent.errors import ConfigError, MachineError
from rl_agent.paths import RunPaths
from rl_agent.plan import runs
from rl_agent.system.owner import write_owner
from rl_agent.system.processes import GroupRecord, ProcessId, pid_space
from tests.support.rollout_setup import make_plan


@pytest.fixture
def plan(tmp_path):
    return make_plan(tmp_path, engine_url="http://127.0.0.1:1")


def test_the_latest_run_is_the_one_whose_plan_was_written_last(plan):
    assert runs.latest_plan(plan.paths) is None
    for name in ("first", "second"):
        assert runs.write_plan(plan.model_copy(update={"run_id": name}), None).name == "plan.json"
        assert runs.latest_plan(plan.paths).run_id == name
    assert runs.latest_plan(plan.paths).attempt == plan.attempt


def test_another_node_writes_its_own_plan_and_makes_no_run_the_latest(plan):
    worker = plan.model_copy(update={"command": plan.command.model_copy(update={"num_nodes": 2, "rank": 1})})
    path = runs.write_plan(worker, None)
    assert path.exists() and path.name != "plan.json"
    assert runs.latest_plan(plan.paths) is None


def test_a_plan_that_cannot_be_read_is_no_plan_and_its_folder_is_named(plan):
    runs.write_plan(plan, None).write_text("{}" + "x" * 10_000)
    with pytest.raises(
        ConfigError, match=r"latest/plan\.json cannot be read: it is of a release .*start without --resume"
    ) as refusal:
        runs.latest_plan(plan.paths)
    assert len(str(refusal.value)) < len(str(plan.paths.run_dir("latest"))) + 300


def test_names_of_runs_sort_by_time_and_two_of_one_second_differ():
    first, second = runs.new_run_id(), runs.new_run_id()
    assert first != second and first[:15] <= second[:15]


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A folder of groups of each run, all of which have this process as their one member."""

    def of(run, *, driver=None, space=None):
        folder = RunPaths(tmp_path).run_dir(run) / "groups" / (space or pid_space()) / "node"
        folder.mkdir(parents=True)
        if driver is not None:
            write_owner(runs._driver_file(folder), driver)
        return folder

    here = ProcessId.of(os.getpid())
    monkeypatch.setattr(
        runs, "read_groups", lambda folder: [GroupRecord(folder.parts[-4], folder, here, "t")]
    )
    monkeypatch.setattr(runs, "members", lambda group: [here.pid])
    return of


def dead():
    with subprocess.Popen([sys.executable, "-Sc", ""]) as process:
        return ProcessId.of(process.pid)


def test_left_over_is_what_lives_on_this_host_without_its_driver(tmp_path, groups):
    groups("killed", driver=dead())
    groups("without-a-driver")
    groups("goes-on", driver=ProcessId.of(os.getpid()))
    groups("of-another-host", space="elsewhere")
    (RunPaths(tmp_path).run_dir("latest")).symlink_to("killed")
    leftovers = runs.find_leftovers(RunPaths(tmp_path))
    assert [left.group.name for left in leftovers] == ["killed", "without-a-driver"], "each once, by no link"
    assert str(leftovers[0]).startswith(f"killed: pid {os.getpid()} (")


def test_groups_that_have_ended_by_themselves_are_not_left_over(tmp_path, groups, monkeypatch):
    groups("killed", driver=dead())
    monkeypatch.setattr(runs, "members", lambda group: [])
    assert runs.find_leftovers(RunPaths(tmp_path)) == []


def test_groups_that_do_not_end_are_named_with_the_command_that_ends_them(tmp_path, groups, monkeypatch):
    groups("killed", driver=dead())
    leftovers = runs.find_leftovers(RunPaths(tmp_path))
    monkeypatch.setattr(runs, "end_groups", lambda groups, grace_s: False)
    with pytest.raises(MachineError, match=rf"try kill -KILL {os.getpid()}$"):
        runs.end_leftovers(leftovers)
    runs.end_leftovers([])
