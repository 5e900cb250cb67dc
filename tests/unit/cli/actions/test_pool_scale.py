"""`pool scale` refuses what cannot work before it asks a provider for anything."""

import errno
import signal
import subprocess
import sys
import time

import pytest

from rl_agent.autoscaler.fleet import Fleet, FleetMachine, write_fleet
from rl_agent.cli.__main__ import main
from rl_agent.cluster.shared_fs.address import free_port

COMMAND = ["pool", "scale", "--provider", "command", "start=true {name}", "stop=true {name}", "list=true"]


def refused(capsys, tmp_path, *words, provider=COMMAND):
    status = main([*provider, "--state", str(tmp_path / "state.json"), *words])
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--manager", "localhost:5000"], "--manager: 'localhost:5000' is not http://HOST:PORT"),
        *(
            (["--manager", url], f"--manager: {url!r} is not http://HOST:PORT")
            for url in (
                "http://",
                "http://user:secret@127.0.0.1:5000",
                "http://127.0.0.1:99999",
                "http://127.0.0.1:5000/pool?x=1",
                "http://a b:1",
                "http://[::1",
                "file:///etc/passwd",
            )
        ),
        (["--engines-manager", "x"], "--engines-manager: 'x' is not http://HOST:PORT"),
        (["--fleet", "Lab A"], "--fleet Lab A: expected small letters"),
        (["--fleet", "-a"[1:] * 41], "40 at most"),
        (["--adopt", "lab-1", "--fleet", "lab"], "--adopt: names the whole fleet; leave --fleet out"),
        (["--max-engines", "0"], "--max-engines 0: at least 1"),
        (["nonsense"], "'nonsense': expected KEY=VALUE"),
    ],
)
def test_a_wrong_option_is_named(capsys, tmp_path, words, line):
    status, message = refused(capsys, tmp_path, *words)
    assert status == 2 and line in message and message.count("\n") == 1


def test_a_missing_setting_is_named_before_the_manager_is_asked(capsys, tmp_path):
    status, message = refused(capsys, tmp_path, provider=COMMAND[:-1])
    assert status == 78 and "list: is missing; the provider's settings are command_timeout_s" in message


def test_a_state_of_another_fleet_is_not_taken_over(capsys, tmp_path):
    write_fleet(tmp_path / "state.json", Fleet("rl-1"))
    status, message = refused(capsys, tmp_path, "--fleet", "rl-2")
    assert status == 2 and "is of the fleet rl-1; give another --state" in message


def test_a_damaged_state_is_not_begun_anew(capsys, tmp_path):
    (tmp_path / "state.json").write_text("{")
    status, message = refused(capsys, tmp_path)
    assert status == 1 and "is not a state of `pool scale`" in message
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]  # and gets no lock beside it


def test_the_verb_pool_names_the_action(capsys):
    with pytest.raises(SystemExit):
        main(["pool", "scale", "--help"])
    assert "FLEET-NUMBER" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--fleet", "lab"], ["--fleet", "lab-3f9a2c1b"], ["--adopt", "lab-3f9a2c1b"]]
)
def test_a_fleet_is_gone_on_with_by_its_name_with_or_without_its_letters(capsys, tmp_path, words):
    write_fleet(tmp_path / "state.json", Fleet("lab-3f9a2c1b"))
    status, message = refused(capsys, tmp_path, *words, "no-such-key=1")
    assert status == 78 and "no-such-key" in message


def test_a_program_that_is_not_there_is_named_before_the_manager_is_asked(capsys, tmp_path):
    status, message = refused(capsys, tmp_path, provider=[*COMMAND[:-1], "list=no-such-program"])
    problem = "this machine has no such program; give the path of one, or install it\n"
    assert status == 78 and message.endswith(f"list: no-such-program: {problem}")


def test_a_folder_that_takes_no_state_is_named_before_any_request(capsys, tmp_path, monkeypatch):
    def read_only(path, text):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("rl_agent.autoscaler.fleet.write_whole", read_only)
    started = tmp_path / "started"
    words = ["pool", "scale", "--provider", "command", f"start=touch {started} {{name}}", "stop=true {name}"]
    nobody = ["--manager", f"http://127.0.0.1:{free_port('127.0.0.1')}"]
    status, message = refused(capsys, tmp_path, *nobody, provider=[*words, "list=true"])
    assert status == 1 and not started.exists()
    assert message.endswith(f"--state {tmp_path / 'state.json'} cannot be written: Read-only file system\n")


def test_machines_of_a_finished_run_are_ended_by_a_restarted_pool_scale(tmp_path):
    machines, state = tmp_path / "machines", tmp_path / "state.json"
    machines.mkdir()
    (machines / "rl-1-1").touch()
    nobody = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    left = FleetMachine("rl-1-1", "spot", time.time(), was_listed=True)
    write_fleet(state, Fleet("rl-1", 2, {left.name: left}, manager=nobody))
    words = ["start=true {name}", f"stop=rm -f {machines}/{{name}}", f"list=ls {machines}"]
    command = [sys.executable, "-m", "rl_agent.cli", *COMMAND[:4], *words, "--state", str(state)]
    command += ["--manager-file", str(tmp_path / "pool.url"), "--poll-s", "0.2", "--settle-s", "0.2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            message = next((line for line in process.stderr if "the fleet is rl-1" in line), "")
            process.send_signal(signal.SIGINT)
            rest = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert message, "it waits for a manager that will not come"
    assert process.returncode == 0 and "no machine is left" in rest
    assert not list(machines.iterdir())
