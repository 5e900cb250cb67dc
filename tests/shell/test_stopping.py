"""However the driver ends, what it started is gone within 15 s, and nothing else is touched."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time

import pytest

from rl_agent.cluster.protocol.records import MASTER_FILE, View, parse
from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.cluster.shared_fs.folder import SharedFolder
from rl_agent.paths import PROJECT_ROOT
from tests.shell import conftest
from tests.shell.conftest import wait_until

BOTH = ("--rl-phase", "both", "--no-final-eval", "--eval-interval", "1", "--max-iterations", "1")
LIMIT_S = 15


def interrupt_as_a_terminal_does(process):
    os.killpg(process.pid, signal.SIGINT)


def seconds_until_gone(harness, process):
    started = time.monotonic()
    process.wait(LIMIT_S)
    wait_until(lambda: not harness.processes(), LIMIT_S, harness)
    return time.monotonic() - started


def how_it_ended(harness) -> tuple[int, str]:
    """Return doctor's reading of the log path."""
    ended = parse(View, SharedFolder(harness.log).read(MASTER_FILE)).ended
    return ended.status, ended.reason


PHASES = {
    # the verb that hangs: a group of its own, a verb of the node process, a group under a deadline
    "engine start": ("serve", {"FAKE_SERVE": "hang"}),
    "rollout": ("rollout", {"FAKE_ROLLOUT": "hang", "FAKE_SERVE": "orphan"}),
    "training": ("train", {"FAKE_TRAIN": "hang"}),
}


@pytest.fixture(params=PHASES)
def hanging(harness, request):
    """The driver of a run that hangs in a phase; a process of another is left alone when it ends."""
    verb, behaviour = PHASES[request.param]
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    process = harness.start(*BOTH, **behaviour)
    harness.wait_for_call(verb)
    yield process
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_ctrl_c_ends_everything_and_exits_130(harness, hanging):
    interrupt_as_a_terminal_does(hanging)

    assert seconds_until_gone(harness, hanging) < LIMIT_S
    assert hanging.returncode == 130
    assert how_it_ended(harness) == (130, "interrupted by Ctrl+C")


@pytest.mark.parametrize("hanging", ["training"], indirect=True)
def test_term_ends_everything_and_exits_143(harness, hanging):
    hanging.terminate()

    assert seconds_until_gone(harness, hanging) < LIMIT_S
    assert hanging.returncode == 143
    assert how_it_ended(harness) == (143, "stopped by TERM")


def test_a_killed_driver_leaves_nothing_behind(harness, hanging):
    hanging.kill()

    assert seconds_until_gone(harness, hanging) < LIMIT_S


def test_a_killed_node_process_is_named_and_leaves_nothing_behind(harness):
    process = harness.start(*BOTH, FAKE_ROLLOUT="hang")
    harness.wait_for_call("rollout")
    (record,) = (harness.log / "runs" / "latest" / "groups").glob("*/rank-0/node")

    os.kill(int(record.read_text().split()[0]), signal.SIGKILL)

    assert seconds_until_gone(harness, process) < LIMIT_S
    assert process.returncode == 128 + signal.SIGKILL
    assert "the node process of this run was killed by signal 9" in harness.stderr


def test_processes_that_ignore_term_are_killed(harness):
    process = harness.start(*BOTH, FAKE_ROLLOUT="stubborn", FAKE_SERVE="stubborn")
    harness.wait_for_call("rollout")
    time.sleep(0.2)  # the fake needs a moment to ignore the signal

    process.terminate()

    assert seconds_until_gone(harness, process) < LIMIT_S
    assert process.returncode == 143
    assert re.search(r"waiting for the engine to end, \d s so far \(killed after 3 s\)", harness.stderr)


def test_a_second_ctrl_c_does_not_wait_for_the_grace(harness, monkeypatch):
    monkeypatch.setattr(conftest, "RUN_SH", run_sh_with_a_grace_of(600, harness.home / "project"))
    process = harness.start(*BOTH, FAKE_ROLLOUT="stubborn", FAKE_SERVE="stubborn")
    harness.wait_for_call("rollout")
    time.sleep(0.2)  # the fake needs a moment to ignore the signal

    interrupt_as_a_terminal_does(process)
    wait_until(lambda: "stopping (status 130)" in harness.stderr, harness=harness)
    interrupt_as_a_terminal_does(process)

    process.wait(300)
    wait_until(lambda: not harness.processes(), harness=harness)
    assert process.returncode == 130
    assert "Killed" not in harness.stderr


def run_sh_with_a_grace_of(seconds, project):
    """The scripts with another grace, so that no slow machine ends it meanwhile."""
    shutil.copytree(PROJECT_ROOT / "scripts", project / "scripts")
    for name in ("rl_agent", "tests", "configs"):
        (project / name).symlink_to(PROJECT_ROOT / name)
    functions = project / "scripts" / "shell_functions" / "common_utils.sh"
    text = functions.read_text()
    assert text.count("readonly STOP_GRACE_S=3 ") == 1
    functions.write_text(text.replace("readonly STOP_GRACE_S=3 ", f"readonly STOP_GRACE_S={seconds} "))
    return project / "scripts" / "run.sh"


def test_a_stopped_run_goes_on_where_it_stopped_with_the_same_settings(harness):
    process = harness.start(*BOTH, FAKE_ROLLOUT="hang")
    harness.wait_for_call("rollout")
    second = harness.run(*BOTH)
    assert second.returncode == 69
    assert f"used by another run, process {process.pid}" in second.stderr
    assert process.poll() is None

    process.terminate()
    process.wait(LIMIT_S)
    calls = len(harness.calls)
    refused = harness.plan(*BOTH, "--resume", "seed=7")
    assert refused.returncode == 78 and "iteration 1 was begun with seed=0, not 7" in refused.stderr
    assert len(harness.calls) == calls

    done = harness.run(*BOTH, "--resume")
    assert done.returncode == 0, done.stderr
    assert [call for call in harness.calls if call.startswith("begun")] == ["begun train 1"]
    assert harness.verbs.count("rollout") == 3
    assert len(list((harness.log / "flags").glob("*/2/1/*/decision.json"))) == 5

    more = (*BOTH[:-1], "2", "--resume", "seed=7", "--dry-run")
    assert "--resume: continues with seed=7 (was 0)" in harness.plan(*more).stdout, "between two iterations"


def test_a_stopped_node_names_the_command_that_starts_it_again(harness):
    two = (*BOTH, "--num-nodes", "2", "--rank-weights", "1,1")  # a joiner has the line of a worker
    master, worker = (
        harness.start(*two, "--worker", str(node), f"engine.port={port}", FAKE_ROLLOUT="hang")
        for node, port in enumerate((harness.port, free_port()))
    )
    harness.wait_for_call("rollout", 2)
    again = (
        (worker, "the same command takes part again; if rank 0 has ended, start that one with --resume"),
        (master, "the same command with --resume goes on"),
    )
    for node, line in again:
        interrupt_as_a_terminal_does(node)
        node.wait(LIMIT_S)
        assert f"run: stopping (status 130); {line}\n" in harness.stderr


def test_leftovers_of_a_killed_run_and_guard_end_at_the_next_start(harness):
    process = harness.start(*BOTH, FAKE_ROLLOUT="hang")
    harness.wait_for_call("rollout")
    guards = [pid for pid, command in harness.processes().items() if "guard.sh" in command]
    for pid in [*guards, process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait(5)
    assert harness.processes()

    done = harness.run(*BOTH, "--resume")

    assert done.returncode == 0, done.stderr
    assert "ending a stale process of a killed run: node" in done.stderr
    assert "ending a stale process of a killed run: vllm" in done.stderr
    assert harness.processes() == {}


def test_the_guard_of_a_killed_run_leaves_its_resumed_run_alone(harness):
    killed = harness.start(*BOTH, FAKE_ROLLOUT="hang")
    harness.wait_for_call("rollout")
    guard = next(pid for pid, command in harness.processes().items() if "guard.sh" in command)
    os.kill(guard, signal.SIGSTOP)  # as slow as one whose trainer takes its time to end
    killed.kill()
    killed.wait(5)
    resumed = harness.start(*BOTH, "--resume", FAKE_ROLLOUT="wait_for_file")
    harness.wait_for_call("rollout", 2)

    os.kill(guard, signal.SIGCONT)
    wait_until(lambda: guard not in harness.processes(), LIMIT_S, harness)
    (harness.home / "go-1").touch()

    assert resumed.wait(LIMIT_S) == 0, harness.stderr


@pytest.mark.extended
def test_the_tutorials_trap_ends_all_nodes_at_ctrl_c(harness):
    page = (PROJECT_ROOT / "docs" / "tutorials" / "three-nodes.md").read_text()
    end_of_block = page[page.index("\ntrap ") :].partition("\n```")[0]
    two = ("--num-nodes", "2", "--rank-weights", "1,1", *BOTH)
    places = (("--master",), ("--worker", "1", f"engine.port={free_port()}"))
    nodes = [shlex.join(harness.argv(*two, *node)) for node in places]
    script = "\n".join([*(f"{node} &" for node in nodes), end_of_block, "trap -p INT >traps-left"])
    with (harness.home / "stderr").open("w") as errors:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            env=harness.env(FAKE_ROLLOUT="hang"),
            cwd=harness.home,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    harness.started.append(shell)
    harness.wait_for_call("rollout", 2)

    interrupt_as_a_terminal_does(shell)

    wait_until(lambda: not harness.processes(), 2 * LIMIT_S, harness)
    assert how_it_ended(harness) == (143, "stopped by TERM")
    shell.wait(LIMIT_S)
    assert (harness.home / "traps-left").read_text() == ""


def test_a_look_that_ctrl_c_ends_counts_as_no_end_of_the_processes(tmp_path):
    """Ctrl+C goes to a terminal's whole group, and so to the subshell that looks who still lives."""
    script = f"""
        source {PROJECT_ROOT}/scripts/shell_functions/common_utils.sh
        trap : INT
        signal_marked() {{ :; }}
        marked_processes() {{
          echo look >>{tmp_path}/looks
          (($(wc -l <{tmp_path}/looks) > 1)) || kill -INT "$BASHPID"
        }}
        end_marked token '' 600
    """
    subprocess.run(["bash", "-euc", script], check=True, timeout=60)
    assert (tmp_path / "looks").read_text().count("look") == 2
