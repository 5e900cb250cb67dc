"""Environments in real workers and on a real server: what killed owners leave, and what the plan says."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from rl_agent.config.overrides.compose import Schema, compose_words
from rl_agent.config.sections.env import EnvConfig
from rl_agent.env.guard import descendants
from rl_agent.env.remote.environments import Environments
from rl_agent.system.processes import ProcessId, command_line, stat_of
from rl_agent.types import Task
from tests.support.ports import quiet_port
from tests.unit.env.remote.pools import KINDS

OWNER = """
import asyncio
from tests.unit.env.remote.pools import begun, workers

async def main():
    async with workers(workers=2) as pool:
        for _ in range(2):
            instance, _ = await begun(pool)
            for how in ("child", "detached"):
                await instance.step(how)
        print("ready", flush=True)
        await instance.step("block 600" if BLOCKS else "wait 600")

asyncio.run(main())
"""
KIND_WORDS = [f"+kinds.{kind}={dotted}" for kind, dotted in KINDS.items()]


def below(pid):
    return [ProcessId.of(child) for child in descendants(pid)]


def assert_all_end(processes, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while left := [process_id.pid for process_id in processes if process_id.is_running]:
        assert time.monotonic() < deadline, (
            f"left: {[(process_id, stat_of(process_id), command_line(process_id)) for process_id in left]}"
        )
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("sign", "blocks"),
    [
        (signal.SIGKILL, True),
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.extended),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.extended),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.extended),
    ],
)
def test_an_ended_collector_leaves_no_worker_and_no_child_of_one(sign, blocks):
    code = OWNER.replace("BLOCKS", str(blocks))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout.readline() == "ready\n"
        processes = below(owner.pid)
        assert len(processes) == 10  # two guards with their twins, two workers, two children of each
        owner.send_signal(sign)
        owner.wait(30)
    assert_all_end(processes)


@contextmanager
def env_server(tmp_path, *words, places=4, listen="127.0.0.1:0"):
    """The real command; gives its address and its process."""
    token = tmp_path / "env.token"
    token.write_text("secret\n")
    token.chmod(0o600)
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "rl_agent.cli", "env-server", "--listen", listen),
            *("--workers", "1", "--places", str(places), "--token-file", str(token), *words),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def config(tmp_path, *words):
    usual = [*KIND_WORDS, f"servers_token_file={tmp_path / 'env.token'}"]
    keys = {word.lstrip("+").partition("=")[0] for word in words}
    kept = [word for word in usual if word.lstrip("+").partition("=")[0] not in keys]
    return compose_words(Schema("env/default", EnvConfig), [*kept, *words])


TASKS = [Task("good", "hello", "obeying", "easy")]


@pytest.mark.extended
async def test_a_rollouts_environments_live_on_the_server_until_its_end(tmp_path):
    with env_server(tmp_path, *KIND_WORDS) as (url, process):
        environments = Environments(config(tmp_path, f"servers=[{url}]"))
        await asyncio.to_thread(environments.check, {"obeying"}, TASKS)
        async with environments:
            instance = environments.create("obeying")
            assert (await instance.reset(TASKS[0], 1)).text.startswith("hello 1 ")
            assert (await instance.step("done")).done
            await instance.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


@pytest.mark.extended
async def test_a_killed_server_leaves_no_worker(tmp_path):
    with env_server(tmp_path, *KIND_WORDS) as (url, process):
        async with Environments(config(tmp_path, f"servers=[{url}]")) as environments:
            instance = environments.create("obeying")
            await instance.reset(TASKS[0], 1)
            await instance.step("detached")
            processes = below(process.pid)
            os.kill(process.pid, signal.SIGKILL)
            assert_all_end(processes)


@pytest.mark.extended
def test_a_server_that_others_could_reach_needs_a_token():
    ended = subprocess.run(
        [sys.executable, "-m", "rl_agent.cli", "env-server", "--listen", f"0.0.0.0:{quiet_port()}"],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "RL_AGENT_ENV_TOKEN"},
        timeout=60,
        check=False,
    )
    assert ended.returncode == 78
    assert "--token-file" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
