"""Hostile programs in a real sandbox of bubblewrap."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rl_agent.config.sections.env import EnvConfig
from rl_agent.env import sandbox
from rl_agent.env.registry import EnvironmentRegistry
from rl_agent.env.sandbox import MAX_FILE_BYTES, run_python
from rl_agent.errors import EnvironmentFailure, EnvironmentUnavailable
from rl_agent.paths import PROJECT_ROOT
from rl_agent.plan.caller import with_callers_kinds
from rl_agent.tasks.load import load_tasks
from tests.integration.lacking import skip_lacking
from tests.unit.docs.documented_blocks import blocks


@pytest.fixture(autouse=True, scope="module")
def _bubblewrap():
    try:
        run_python("pass")
    except (EnvironmentFailure, EnvironmentUnavailable) as error:
        skip_lacking(str(error))


def programs_of(text):
    return f"Here it is:\n```python\n{text}\n```"


async def test_the_function_of_the_page_scores_programs_by_their_tests(tmp_path):
    page = PROJECT_ROOT / "docs" / "how-to" / "add-an-environment.md"
    (file,) = [text for text in blocks(page, "python") if "run_python" in text]
    (line,) = [text for text in blocks(page, "json") if "tests" in text]
    (tmp_path / "code_rewards.py").write_text(file)
    (tmp_path / "train.jsonl").write_text(line)
    typed = EnvConfig.model_construct(
        default_env="code_rewards.py:score", kinds={}, module_folders=(), kwargs={}
    )
    env_config = with_callers_kinds(typed, tmp_path)
    (task,), registry = load_tasks(tmp_path / "train.jsonl", env_config), EnvironmentRegistry(env_config)
    environment = registry.create(task.env)
    rewards = []
    for program in (
        "print(sum(map(int, input().split())))",
        "print(41)",
        "import os; os.kill(os.getppid(), 9)",
    ):
        await environment.reset(task, seed=0)
        rewards.append((await environment.step(programs_of(program))).reward)

    assert rewards == [1.0, 0.0, 0.0]


def living(word):
    """Processes of this machine with a word in their command line."""
    done = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if word in line]


def sleeper(word):
    """The code of a process that sleeps under a name of its own."""
    return f"os.execv('/usr/bin/sleep', ['{word}', '99'])"


def test_a_program_reads_its_input_and_its_output_comes_back():
    run = run_python("import sys; print(input()[::-1]); print('é', file=sys.stderr); sys.exit(3)", "abc\n")
    assert (run.status, run.stdout, run.stderr, run.stopped_for) == (3, "cba\n", "é\n", "")


def test_an_endless_loop_ends_at_the_time_limit():
    assert run_python("while True: pass", timeout_s=0.5).stopped_for == "time"


def test_a_fork_bomb_has_few_processes_and_ends_whole():
    bomb = f"""
import os
for _ in range(100):
    try:
        os.fork()
    except OSError:
        pass
print(1, flush=True)
{sleeper("of-the-bomb")}
"""
    run = run_python(bomb, timeout_s=3)
    assert run.stopped_for == "time"
    assert 1 <= run.stdout.count("1") <= 16
    assert not living("of-the-bomb")


def test_one_process_cannot_take_more_memory_than_the_limit():
    run = run_python("kept = []\nwhile True: kept.append(bytearray(10_000_000))", max_memory_mib=200)
    assert "MemoryError" in run.stderr


def test_several_processes_cannot_take_more_memory_together():
    code = """
import os, time
os.fork(), os.fork()
taken = bytearray(b"x") * 150_000_000
time.sleep(99)
"""
    assert run_python(code, timeout_s=60, max_memory_mib=300).stopped_for == "memory"


def test_shared_memory_counts():
    code = """
import mmap, os
os.fork()
taken = mmap.mmap(-1, 200_000_000)
for _ in range(20):
    taken.write(bytes(10_000_000))
while True:
    pass
"""
    assert run_python(code, timeout_s=60, max_memory_mib=300).stopped_for == "memory"


def test_output_without_end_is_cut_at_the_largest_file():
    run = run_python("while True: print('x' * 1000)")
    assert len(run.stdout) == MAX_FILE_BYTES and run.status != 0


def test_a_daemon_ends_with_the_program():
    daemon = f"""
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {sleeper("the-daemon")}
    os._exit(0)
os.wait()
print("left")
"""
    run = run_python(daemon)
    assert (run.stdout, run.stopped_for) == ("left\n", "")
    assert not living("the-daemon")


def test_signals_of_a_program_reach_only_itself():
    run = run_python("import os\nos.kill(1, 9)\nprint('alive', flush=True)\nos.fork()\nos.kill(-1, 9)")
    assert (run.stdout, run.stopped_for) == ("alive\n", "")


def test_no_file_outside_tmp_can_be_written_and_tmp_is_small(tmp_path):
    code = """
import os
for path in ("/x", "/usr/x", "/dev/x", "/dev/shm/x", "/program.py", "/proc/sys/kernel/x", FOLDER + "/x"):
    try:
        open(path, "wb").write(b"x")
        print(path)
    except OSError:
        pass
try:
    for number in range(99):
        open(f"/tmp/{number}", "wb").write(bytes(1_000_000))
except OSError as error:
    print(error.strerror)
"""
    run = run_python(code.replace("FOLDER", repr(str(tmp_path))))
    assert (run.stdout, run.stderr) == ("No space left on device\n", "")
    assert not list(tmp_path.iterdir()) and not Path("/x").exists()


def test_no_variable_file_or_process_of_the_run_can_be_seen(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("secret-word")
    monkeypatch.setenv("RL_AGENT_POOL_TOKEN", "secret-word")
    code = f"""
import os, pathlib
processes = [name for name in os.listdir("/proc") if name.isdigit()]
print(dict(os.environ), os.listdir("/"), [open(f"/proc/{{pid}}/environ").read() for pid in processes])
print([os.readlink(f"/proc/self/fd/{{fd}}") for fd in ("0", "1", "2")], len(os.listdir("/proc/self/fd")))
print([path for path in ("/etc/passwd", "/home", "/root", "/sys", "{tmp_path}") if os.path.exists(path)])
"""
    run = run_python(code)
    assert run.stderr == ""
    assert "secret-word" not in run.stdout
    assert run.stdout.endswith(" 4\n[]\n")


def test_no_server_can_be_reached_not_even_on_this_machine():
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"""
import socket
for place in ("127.0.0.1", {server.getsockname()[1]}), ("192.0.2.1", 80):
    try:
        socket.create_connection(place, 2)
        print("reached")
    except OSError as error:
        print("not reached")
"""
        assert run_python(code).stdout == "not reached\n" * 2


def test_a_program_makes_no_user_namespace_in_which_it_were_root():
    code = "import ctypes\nprint(ctypes.CDLL(None).unshare(0x10000000))"
    assert run_python(code).stdout == "-1\n"


def test_a_program_ends_with_the_process_that_runs_it():
    code = f"import os; {sleeper('without-caller')}"
    caller = f"from rl_agent.env.sandbox import run_python; run_python({code!r}, timeout_s=99)"
    process = subprocess.Popen([sys.executable, "-c", caller])
    wait_until(lambda: living("without-caller 99"))
    process.kill()
    process.wait()
    wait_until(lambda: not living("without-caller 99"))


def wait_until(is_so):
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_several_programs_run_at_once_each_with_its_own_limits():
    runs = []
    code = (
        "import threading, time\n[threading.Thread(target=time.sleep, args=(1,)).start() for _ in range(8)]"
    )
    threads = [threading.Thread(target=lambda: runs.append(run_python(code))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.status for run in runs] == [0] * 6


def test_without_bubblewrap_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EnvironmentUnavailable, match="apt-get install bubblewrap"):
        run_python("pass")


def test_a_sandbox_that_cannot_be_made_is_no_failure_of_the_program(monkeypatch):
    monkeypatch.setattr(sandbox, "_ISOLATED", ("--ro-bind", "/nonexistent", "/usr"))
    with pytest.raises(EnvironmentFailure, match="/nonexistent: No such file"):
        run_python("pass")


def test_a_program_of_the_machine_is_found_by_its_alternative():
    """A link such as apt's numpy follows to its libblas, and python3 itself on RHEL."""
    links = [link for link in Path("/usr/bin").iterdir() if link.is_symlink()]
    names = [link.name for link in links if str(link.readlink()).startswith("/etc/alternatives/")]
    if not names:
        pytest.skip("this machine has no alternatives")
    run = run_python(f"import shutil; print(shutil.which({names[0]!r}))")
    assert run.stdout == f"/usr/bin/{names[0]}\n", run


@pytest.mark.skipif(os.geteuid() != 0, reason="for root only")
def test_root_without_capabilities_is_told_which_a_sandbox_needs():
    """Run as in a container under --cap-drop=ALL."""
    caller = "from rl_agent.env.sandbox import run_python; run_python('pass')"
    words = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", caller)
    run = subprocess.run(words, capture_output=True, text=True)
    assert "EnvironmentFailure: no sandbox can be made: root" in run.stderr
