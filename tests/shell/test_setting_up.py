"""Setting up says how long it takes, and a signal ends it at once with the status of the shell."""

import signal
import subprocess

import pytest

from rl_agent.paths import PROJECT_ROOT
from tests.shell.conftest import wait_until

SETUP_UTILS = PROJECT_ROOT / "scripts" / "shell_functions" / "setup_utils.sh"
INTERRUPTED = """#!/usr/bin/env bash
# As a terminal does: the signal reaches the script and what it runs, which ends with a status of its own.
[[ $* != *ensurepip* ]] || { kill -INT "$PPID"; exit 1; }
exec python3 "$@"
"""


@pytest.mark.parametrize("script", ["quickstart.sh", "test.sh"])
def test_ctrl_c_during_the_checks_is_not_taken_for_a_missing_part(script, tmp_path):
    python = tmp_path / "python"
    python.write_text(INTERRUPTED)
    python.chmod(0o755)
    environ = {"PATH": "/usr/bin:/bin:/usr/local/bin", "PYTHON": str(python), "HOME": str(tmp_path)}
    command = ["bash", PROJECT_ROOT / "scripts" / script]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


WITH_CLOCK = """
source {setup_utils}
read() {{  # ten seconds pass at once, twice
  echo >>ticks
  (($(wc -l <ticks) < 3)) || builtin read -r -t 60
}}
with_clock 'making it' bash -c 'until [[ $(cat ticks 2>/dev/null | wc -l) == 3 ]]; do :; done; exit 7'
"""


def test_a_silent_program_is_announced_until_it_ends_and_its_status_counts(tmp_path):
    command = ["bash", "-c", WITH_CLOCK.format(setup_utils=SETUP_UTILS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7
    assert done.stderr == "setup: making it, 10 s so far\nsetup: making it, 20 s so far\n"


def test_ctrl_c_ends_the_announcements_with_the_script(tmp_path):
    making = "source {setup_utils}; end_on_signals; with_clock 'making it' bash -c 'kill -INT $PPID; exit 1'"
    command = ["bash", "-c", making.format(setup_utils=SETUP_UTILS)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")  # stderr is closed before ten seconds have passed


RUN_OWNED = """
source {setup_utils}
end_on_signals
run_owned bash -c '
  trap "echo ended by {name} >ended; exit {status}" {name}
  touch ready
  while sleep 0.05; do :; done
'
"""


@pytest.mark.parametrize("name, status", [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_a_signal_that_ends_the_script_ends_the_command_that_it_runs(name, status, tmp_path):
    script = RUN_OWNED.format(setup_utils=SETUP_UTILS, name=name, status=status)
    process = subprocess.Popen(["bash", "-Eeuo", "pipefail", "-c", script], cwd=tmp_path)
    try:
        wait_until((tmp_path / "ready").exists)
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.wait(30) == status
    finally:
        process.kill()
    assert (tmp_path / "ended").read_text() == f"ended by {name}\n"


def installed_offline(part, ci, folder):
    """Let a part be installed where nothing can be."""
    (folder / "bin").mkdir()
    for name in ("apt-get", "sudo"):
        (folder / "bin" / name).write_text("#!/bin/sh\nexit 100\n")
        (folder / "bin" / name).chmod(0o755)
    installing = f"source {SETUP_UTILS}; PROJECT_ROOT={folder}; type() {{ return 1; }}; ensure_{part}"
    environ = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "CI": ci}
    return subprocess.run(["bash", "-c", installing], env=environ, capture_output=True, text=True, timeout=60)


def test_mooncakes_engine_is_never_left_out(tmp_path):
    done = installed_offline("mooncake", "", tmp_path)
    assert done.returncode == 78
    assert done.stderr.splitlines()[-1].startswith("setup: could not install libibverbs1")


@pytest.mark.parametrize("part", ["slurm", "chromium"])
@pytest.mark.parametrize(("ci", "status"), [("true", 78), ("", 0)])
def test_a_part_that_cannot_be_installed_fails_the_gate_with_ci_alone(part, ci, status, tmp_path):
    done = installed_offline(part, ci, tmp_path)
    assert done.returncode == status
    last = done.stderr.splitlines()[-1]
    assert last.startswith("setup: could not install ")
    assert ("CI=true allows no such gap" in last) == bool(ci)


def test_a_kind_of_tests_runs_the_named_ones_alone():
    named = "tests/shell/test_slurm_files.py"
    command = ["bash", "scripts/test.sh", "shell", named, "--collect-only"]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=100)
    tests = [line for line in done.stdout.splitlines() if "::" in line]
    assert tests and all(test.startswith(f"{named}::") for test in tests), done.stderr
