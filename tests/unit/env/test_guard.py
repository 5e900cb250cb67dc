"""Whatever is killed or frozen, a guard leaves no process and no folder."""

# ruff: noqa: ASYNC220, ASYNC221 - nothing else runs here

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rl_agent.env.guard import descendants, has_word, own_bytes, pid_file
from rl_agent.env.guarded import Guarded
from rl_agent.system.processes import ProcessId
from tests.unit.env.remote.pools import is_gone, until

COMMAND = """
import os, subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleeper)
subprocess.Popen(sleeper, start_new_session=True, env={})
if not os.fork():
    subprocess.Popen(sleeper, start_new_session=True, env={})
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(600)
"""
OWNER = """
import sys, time
from rl_agent.env.guarded import Guarded
guarded = Guarded("guarded-")
guarded.start(sys.executable, "-c", sys.argv[1])
time.sleep(600)
"""
LIMIT_S = 30.0


@pytest.fixture
def owner(tmp_path):
    """An owner of a command that has started four generations; its temporary files are in `tmp_path`."""
    command = [sys.executable, "-c", OWNER, COMMAND]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def family(owner, tmp_path):
    """Return guard, twin and command, and everyone below the owner."""
    (folder,) = tmp_path.iterdir()
    guard = int(pid_file(folder).read_text())
    (twin,) = descendants(guard)[:1]
    below = descendants(twin)
    command = next(pid for pid in below if os.getpgid(pid) == pid)
    everyone = {ProcessId.of(pid) for pid in descendants(owner.pid)}
    assert len(everyone) == 6
    return {"guard": guard, "twin": twin, "command": command}, everyone


async def all_gone(processes, folder):
    await until(lambda: not any(process.is_running for process in processes), LIMIT_S)
    await until(lambda: not list(folder.iterdir()), LIMIT_S)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("victim", ["guard", "twin", "command"])
async def test_a_killed_owner_leaves_nothing_whichever_process_was_stopped(owner, tmp_path, victim, number):
    named, everyone = family(owner, tmp_path)
    os.kill(named[victim], number)
    owner.kill()
    await all_gone(everyone, tmp_path)


FREEZING_OWNER = """
import os, signal, sys
from rl_agent.system.processes import ProcessId
from rl_agent.env.guarded import Guarded
guarded = Guarded("guarded-")
guard = guarded.start(sys.executable, "-c", "import time; time.sleep(600)")
guard.send_signal(signal.SIGSTOP)
while not ProcessId.of(guard.pid).is_stopped:
    pass
print(guard.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_a_killed_owner_with_an_early_stopped_guard_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", FREEZING_OWNER]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as owner:
        guard = int(owner.stdout.readline())
    await until(lambda: is_gone(guard), LIMIT_S)
    await all_gone((), tmp_path)


@pytest.mark.parametrize("victim", ["guard", "twin", "command"])
async def test_nothing_is_left_where_one_of_them_is_killed_and_the_owner_lives(owner, tmp_path, victim):
    named, everyone = family(owner, tmp_path)
    os.kill(named[victim], signal.SIGKILL)
    await all_gone(everyone, tmp_path)
    assert owner.poll() is None


async def test_of_two_guards_the_stopped_one_takes_over_from_the_killed_one(owner, tmp_path):
    named, everyone = family(owner, tmp_path)
    os.kill(named["twin"], signal.SIGSTOP)
    os.kill(named["guard"], signal.SIGKILL)
    await all_gone(everyone, tmp_path)


@pytest.mark.parametrize("victim", ["guard", "twin", "command"])
async def test_an_owner_ends_what_is_stopped(tmp_path, monkeypatch, victim):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    guarded = Guarded("guarded-")
    words = guarded.words(sys.executable, "-c", COMMAND)
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        (twin,) = descendants(process.pid)[:1]
        everyone = {ProcessId.of(pid) for pid in descendants(process.pid)}
        command = descendants(twin)[0]
        os.kill({"guard": process.pid, "twin": twin, "command": command}[victim], signal.SIGSTOP)
        await guarded.end()
        assert not list(tmp_path.iterdir())
        await all_gone(everyone, tmp_path)


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.abort()", 134)])
def test_the_end_of_the_command_is_that_of_the_guard(code, expected):
    guarded = Guarded("guarded-")
    ended = subprocess.run(guarded.words(sys.executable, "-c", code), timeout=LIMIT_S)
    assert ended.returncode == expected
    assert not guarded.folder.exists()


def test_a_command_has_input_and_output_and_its_end_is_seen_at_once():
    guarded = Guarded("guarded-")
    code = "import os, time; print(input()); os.close(1); os.close(0); time.sleep(600)"
    words = guarded.words(sys.executable, "-c", code)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write("heard\n")
        process.stdin.flush()
        assert process.stdout.read() == "heard\n"  # to the end of the file: no guard has it open
        guarded.tell()


def test_a_command_may_end_by_itself_and_is_killed_after_its_grace():
    polite = (
        "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print(1, flush=True); signal.pause()"
    )
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"
    for code, expected, grace_s in ((polite, 5, 600.0), (deaf, 128 + 15, 0.1)):
        guarded = Guarded("guarded-", grace_s=grace_s)
        words = guarded.words(sys.executable, "-c", code)
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            guarded.tell()
            assert process.wait(LIMIT_S) == expected


def test_a_program_that_is_not_there_is_named(capfd):
    words = Guarded("guarded-").words("no-such-program")
    assert subprocess.run(words, timeout=LIMIT_S).returncode == 127
    assert capfd.readouterr().err == "no-such-program: No such file or directory\n"


async def test_a_guard_that_begins_after_the_end_starts_nothing(tmp_path):
    guarded = Guarded("guarded-")
    witness = tmp_path / "witness"
    words = guarded.words("touch", str(witness))
    await guarded.end()
    assert subprocess.run(words, timeout=LIMIT_S).returncode == 1
    assert not witness.exists()


async def test_only_large_processes_with_the_word_are_killed():
    hungry = "import time; held = b'x' * 300_000_000; time.sleep(600)"
    words_of = [[sys.executable, "-c", hungry, word] for word in ("too-large", "another")]
    code = f"import subprocess, time; [subprocess.Popen(each) for each in {words_of}]; time.sleep(600)"
    guarded = Guarded("guarded-")

    def large(word):
        below = (pid for pid in descendants(process.pid) if own_bytes([pid]) > 200_000_000)
        return [pid for pid in below if has_word(pid, b"\0" + word + b"\0")]

    with subprocess.Popen(guarded.words(sys.executable, "-c", code, max_mib=100, among="large")) as process:
        await until(lambda: large(b"another"), LIMIT_S)  # which was started after the other
        await until(lambda: not large(b"too-large"), LIMIT_S)
        assert large(b"another")
        await guarded.end()


def test_memory_is_counted_of_those_that_are_there():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        deadline = time.monotonic() + LIMIT_S
        while own_bytes([child.pid]) < 2**20:
            assert time.monotonic() < deadline
        child.stdin.write(b"\n")
    assert own_bytes([child.pid, 10**9]) == 0
    assert descendants(10**9) == []
    assert not Path(f"/proc/{child.pid}").exists()
