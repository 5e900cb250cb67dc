"""What doctor concludes, from records as they lie on the shared folder, and from a living run."""

import dataclasses
import signal
import subprocess
import sys

import pytest

from rl_agent.cli import doctor
from rl_agent.cluster.member import stacks
from rl_agent.cluster.protocol.diagnosis import FolderPolls, diagnose
from rl_agent.cluster.protocol.records import Decision, MemberView, PhaseOrder, RunEnd, View
from rl_agent.cluster.shared_fs.processes import ProcessId
from rl_agent.errors import ConfigError
from rl_agent.paths import PROJECT_ROOT
from rl_agent.testing.members import master, until
from tests.unit.cluster.cluster_states import record, report


def member(rank, status="alive", reason="", is_joiner=False):
    return MemberView(
        incarnation=f"m{rank}",
        rank=rank,
        host=f"host-{rank}",
        weight=1,
        is_joiner=is_joiner,
        status=status,
        reason=reason,
    )


ORDER = PhaseOrder(seq=4, iteration=3, phase="rollout", participants={"m0": 0, "m1": 1})


BOTH = (member(0), member(1))


def look(*, members=BOTH, silent=(), order=ORDER, stopped=(), records=None, **fields):
    values = {"refused": {}, "work": None, "decisions": {}, "ended": None}
    view = View(
        number=9,
        beat=9,
        run_id="run",
        attempt=2,
        term=1,
        master="m0",
        host="host-0",
        heartbeat_s=2.0,
        lease_s=30.0,
        config_digest="d",
        weights=(1, 1),
        members=members,
        order=order,
        **(values | fields),
    )
    found = {m.incarnation: record(m.incarnation, m.rank, host=m.host) for m in members}
    found |= records or {}
    beating = frozenset(found) - frozenset(silent)
    return FolderPolls(view, found, beating, "m0" not in silent, frozenset(stopped))


def both(made):
    seen, advice = diagnose(made)
    return "\n".join(seen), "\n".join(advice)


def test_a_healthy_run_tells_phase_nodes_and_who_waits_for_whom_and_asks_for_nothing():
    work = report((3, "rollout"), claimed=[1, 2, 3], completed=[1])
    busy = record("m1", 1, host="host-1", work=work, doing="train 3: 5 of 9", doing_s=65.0)
    finished = record("m0", 0, host="host-0", flags={(3, "rollout"): "done"})
    seen, advice = both(look(records={"m0": finished, "m1": busy}))
    assert "rollout of iteration 3, not decided" in seen
    assert "rank 1 (host-1), process 7: alive" in seen and "1 of 3 claimed chunks done" in seen
    assert "waits for rank 1 (host-1), at: train 3: 5 of 9, for 65 s" in seen
    assert "waits for rank 0" not in seen and advice == ""


def test_a_silent_node_is_named_with_its_process_and_what_will_happen():
    seen, advice = both(look(silent=["m1"]))
    assert "rank 1 (host-1), process 7: SILENT" in seen
    assert "rank 1 (host-1) sends no heartbeat" in advice and "process 7" in advice


def test_a_silent_master_comes_first_and_alone():
    _, advice = both(look(silent=["m0", "m1"]))
    assert advice.startswith("rank 0 (host-0) sends no heartbeat") and "rank 1" not in advice


def test_a_stopped_process_is_told_with_the_command_that_wakes_it():
    seen, advice = both(look(silent=["m1"], stopped=["m1"]))
    assert "STOPPED" in seen and advice == "rank 1 (host-1) is stopped: kill -CONT 7"
    seen, advice = both(look(silent=["m0"], stopped=["m0"]))
    assert "STOPPED" in seen and advice == "rank 0 (host-0) is stopped (SIGSTOP): kill -CONT 7"


def test_a_dead_node_is_told_with_the_reason_and_may_be_replaced():
    seen, advice = both(look(members=(member(0), member(1, "dead", "silent for 31 s"))))
    assert "dead: silent for 31 s" in seen and advice.startswith("rank 1 may be started (again)")


def test_a_run_that_starts_tells_which_ranks_are_missing():
    seen, advice = both(look(members=(member(0),), order=None))
    assert "rank 0 (host-0) waits for rank 1" in seen and "rank 1 may be started" in advice


def test_nodes_that_wait_or_were_refused_are_shown():
    strangers = {"x": record("x", 1, host="host-x", state="waiting"), "y": record("y", 1, host="host-y")}
    seen, _ = both(look(records=strangers, refused={"y": "rank 1 is taken"}))
    assert "rank 1 (host-x), process 7: waits to be admitted" in seen
    assert "rank 1 (host-y), process 7: refused: rank 1 is taken" in seen


def test_between_two_phases_the_others_wait_for_the_master():
    seen, _ = both(look(decisions={"3/rollout": Decision(outcome="done")}))
    assert "decided: done" in seen and "wait for the next order of rank 0" in seen


@pytest.mark.parametrize(("status", "advised"), [(0, False), (75, True)])
def test_a_run_that_has_ended_says_how_and_needs_help_only_if_it_broke_off(status, advised):
    seen, advice = both(look(ended=RunEnd(status=status, reason="because"), silent=["m0", "m1"]))
    assert f"ended with status {status}: because" in seen and bool(advice) is advised


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


SLEEPER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from rl_agent.cluster.member import stacks
def where_it_hangs():
    print(stacks.register(Path(sys.argv[2]), "inc"), flush=True)
    time.sleep(60)
where_it_hangs()
"""


@pytest.fixture
def sleeper(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(PROJECT_ROOT), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    path = process.stdout.readline().strip()
    said = {"process": ProcessId.of(process.pid), "stacks": path}
    yield process, record("inc", 1, **said)
    process.kill()
    process.communicate()


def test_a_node_process_shows_where_it_hangs(sleeper):
    _, said = sleeper
    assert "where_it_hangs" in stacks.collect(said)
    assert stacks.collect(said).count("where_it_hangs") == 1


def test_a_process_that_is_stopped_or_another_one_by_now_gets_no_signal_that_kills_it(sleeper, monkeypatch):
    process, said = sleeper
    monkeypatch.setattr(stacks, "_ANSWER_S", 0.2)
    process.send_signal(signal.SIGSTOP)
    until(lambda: said.process.is_stopped, "it is not stopped")
    assert "stopped" in stacks.collect(said)
    process.send_signal(signal.SIGCONT)
    of_before = dataclasses.replace(said.process, start_ticks=said.process.start_ticks + 1)
    other = said.model_copy(update={"process": of_before})
    assert "is gone" in stacks.collect(other)
    assert "writes no stacks" in stacks.collect(said.model_copy(update={"stacks": None}))
    assert process.poll() is None


def test_stacks_of_this_host_are_printed_with_what_the_process_is_at(tmp_path, capsys):
    with master(tmp_path, 1) as node:
        node.set_doing("thinking")
        until(lambda: node.record_of(node.incarnation).doing == "thinking", "it does not say so")
        doctor.main(["--log-path", str(tmp_path / "log"), "--stacks"])
    printed = capsys.readouterr().out
    assert "at: thinking" in printed and "test_stacks_of_this_host" in printed
