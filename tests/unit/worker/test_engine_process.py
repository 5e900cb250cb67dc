"""The process of an engine: the words that start it, and an end that leaves nothing of its group."""

import sys
from dataclasses import replace

import pytest

from rl_agent.system.processes import ProcessId
from rl_agent.worker.engine_process import EngineCommand, EngineProcess, describe_exit, gpu_environment
from tests.support.pool_setup import until

ITS = {"PATH": "/bin", "PYTHONSAFEPATH": "1"}


def command(kind="vllm", *, key=None, loads=False, extra=()):
    return EngineCommand(kind, "127.0.0.1", key, extra, {"PATH": "/bin"}, loads_weights=loads)


def test_vllm_command_has_no_key_and_weight_updates_need_the_extension():
    loading = command(key="secret", loads=True, extra=("--dtype", "float32"))
    words = loading.words("model", 7)
    assert "secret" not in words and words[-2:] == ["--dtype", "float32"]
    assert words[words.index("--worker-extension-cls") + 1].startswith("rl_agent.")
    assert loading.environ() == ITS | {"VLLM_API_KEY": "secret", "VLLM_SERVER_DEV_MODE": "1"}
    assert "--worker-extension-cls" not in command().words("model", 7)
    assert command().environ() == ITS


def test_sglang_gets_its_key_by_argument_and_no_image_cache_with_weights():
    loading = command("sglang", key="secret", loads=True)
    words = loading.words("model", 7)
    assert words[words.index("--api-key") + 1] == "secret" and words[words.index("--port") + 1] == "7"
    assert loading.environ() == ITS | {"SGLANG_VLM_CACHE_SIZE_MB": "0"}
    usual = replace(loading, loads_weights=False, environment={"SGLANG_VLM_CACHE_SIZE_MB": "4096"})
    assert usual.environ()["SGLANG_VLM_CACHE_SIZE_MB"] == "4096"
    assert replace(usual, loads_weights=True).environ()["SGLANG_VLM_CACHE_SIZE_MB"] == "0"


@pytest.mark.parametrize(("gpus", "expected"), [("0,1", {"CUDA_VISIBLE_DEVICES": "0,1"}), (None, {})])
def test_an_engine_sees_the_gpus_that_it_was_given(gpus, expected):
    assert gpu_environment(gpus, {}) == expected


def test_an_exit_is_said_in_words():
    assert [describe_exit(status) for status in (3, -9)] == ["exit status 3", "signal SIGKILL"]


class Script(EngineCommand):
    """Starts a child that ignores TERM, and ends itself."""

    def words(self, model, port):
        child = (
            "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
        )
        code = (
            "import subprocess, sys\n"
            f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
            "child.stdout.readline(); print(child.pid, flush=True)\n"
        )
        return [sys.executable, "-S", "-c", code]


async def test_children_of_a_dead_engine_that_ignore_term_are_killed(tmp_path):
    engine = await EngineProcess.start(Script("vllm", "127.0.0.1", None, (), {}), "model", tmp_path / "log")
    assert await engine.wait() == 0
    child = ProcessId.of(int((tmp_path / "log").read_text()))
    assert child.is_running
    await engine.end()
    await until(lambda: not child.is_running, 10)
    assert engine.exit_status == 0
