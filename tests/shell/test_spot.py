"""`emulate_spot.sh`: its workers come, and leave with notice or without, as the trace says; none stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_agent.paths import PROJECT_ROOT
from rl_agent.system.processes import command_line, stat_of

STUB = f"""#!/usr/bin/env bash
if [[ $4 == join-pool ]]; then # behind -P -m rl_agent.cli
  trap 'echo told >>"$CALLS"; exit 0' TERM
  echo "join ${{*:5}}" >>"$CALLS"
  sleep 600 &
  wait $!
fi
exec {sys.executable!r} -c '
import runpy, sys
sys.executable = sys.argv[1]
sys.exit(runpy.run_path(sys.argv[2])["main"](sys.argv[3:]))
' "$0" "${{@:2}}"
"""
"""Stands before Python: a worker that notes how it was started and that it was told to leave."""


@pytest.fixture
def emulate(tmp_path):
    stub = tmp_path / "python"
    stub.write_text(STUB)
    stub.chmod(0o755)

    def run(*words: str) -> tuple[list[str], str]:
        environ = {**os.environ, "RL_AGENT_PYTHON": str(stub), "CALLS": str(tmp_path / "calls")}
        script = ["bash", str(PROJECT_ROOT / "scripts" / "emulate_spot.sh"), *words]
        done = subprocess.run(script, env=environ, capture_output=True, text=True, timeout=90, check=True)
        return (tmp_path / "calls").read_text().splitlines(), done.stderr

    return run


def living_of(groups: set[int]) -> list[str]:
    """Processes of these groups that are more than an entry nobody has asked for yet."""
    stats = [stat_of(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    alive = [stat for stat in stats if stat is not None and stat.state not in "ZX" and stat.pgid in groups]
    return [command_line(stat.pid) for stat in alive]


def test_a_trace_is_lived_through_and_nothing_is_left_behind(emulate, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,change,how\n0,+1,\n0,+1,\n100,+1,\n200,-1,notice\n300,-1,kill\n")

    calls, output = emulate(
        "--trace", str(trace), "--time-scale", "0.02", "--until-s", "350", "--", "--price", "2"
    )

    assert calls.count("join --price 2") == 3
    # The one with notice, and the one that is left at the end; the killed one was told nothing.
    assert calls.count("told") == 2
    workers = {line.partition("worker ")[2].partition(";")[0] for line in output.splitlines()} - {""}
    assert len(workers) == 3
    assert not living_of({int(pid) for pid in workers})


def test_the_fixed_schedule_grows_to_four_then_replaces_the_oldest(emulate):
    calls, output = emulate("--time-scale", "0.0005", "--until-s", "10700")

    assert [line.partition("; ")[2] for line in output.splitlines() if "worker" in line] == [
        *("1 run", "2 run", "3 run", "4 run", "3 run", "4 run"),
    ]
    assert len([call for call in calls if call.startswith("join")]) == 5
