"""A program's variables, its output, and its end."""

import signal
import sys

import pytest

from rl_agent.env.agent.program import MAX_OUTPUT_BYTES, ProgramEnd, environment_of, run_program

URL = "http://127.0.0.1:1/x/v1"


async def run(text, stdin=b""):
    command = [sys.executable, "-c", text]
    return await run_program(command, variables={"PATH": "/usr/bin:/bin"}, cwd=None, stdin=stdin)


def test_a_program_has_the_callers_variables_without_secrets():
    environ = {"PATH": "/bin", "WANDB_API_KEY": "s", "SERPER_API_KEY": "t", "OPENAI_API_KEY": "mine"}
    variables = environment_of(environ, {"SERPER_API_KEY": None, "MODE": "fast", "GONE": None}, URL)
    assert variables["SERPER_API_KEY"] == "t", "it was to be passed on"
    assert variables["OPENAI_API_KEY"] != "mine"
    assert variables["OPENAI_BASE_URL"] == URL
    assert (variables["PATH"], variables["MODE"]) == ("/bin", "fast")
    assert not {"WANDB_API_KEY", "GONE"} & variables.keys()


def test_a_proxy_is_not_asked_for_this_machine():
    variables = environment_of({"NO_PROXY": "example.org"}, {}, URL)
    assert variables["NO_PROXY"] == "example.org,127.0.0.1"
    assert variables["no_proxy"] == "127.0.0.1"


async def test_input_output_and_status_are_the_programs():
    end = await run("import sys; print(sys.stdin.read()); print('e', file=sys.stderr); sys.exit(3)", b"hello")
    assert end == ProgramEnd(3, "hello\n", "e\n")


async def test_a_large_input_that_nobody_reads_is_no_error():
    assert (await run("print(1)", b"x" * 2**20)).stdout == "1\n"


async def test_of_a_long_output_the_end_is_kept():
    end = await run("print('x' * 3_000_000); print('the end')")
    assert len(end.stdout) == MAX_OUTPUT_BYTES
    assert end.stdout.endswith("x\nthe end\n")


async def test_a_program_that_a_signal_ended_says_so_by_its_status():
    end = await run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert end.code == 128 + signal.SIGKILL
    assert end.last_words == "it wrote nothing"


async def test_output_that_is_no_text_is_readable():
    end = await run("import sys; sys.stdout.buffer.write(b'\\xff\\x00\\n')")
    assert end.last_words == "\ufffd\\x00"


async def test_a_folder_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(OSError, match="gone"):
        await run_program(["true"], variables={}, cwd=str(tmp_path / "gone"), stdin=b"")
