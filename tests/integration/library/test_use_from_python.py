"""The programs of docs/how-to/use-from-python.md, run as printed, from a wheel and outside the repository."""

import asyncio
import signal
import subprocess

import pytest

from rl_agent.paths import PROJECT_ROOT
from tests.support.pool_setup import manager
from tests.unit.docs.documented_blocks import blocks

PAGE = PROJECT_ROOT / "docs" / "how-to" / "use-from-python.md"
EVALUATE, GROUPS, RESUME = blocks(PAGE, "python")


@pytest.fixture
def start(installed, outside):
    """Start a program of the page, with another address in place of the page's."""

    def start(code, **addresses):
        assert len(code.splitlines()) < 30
        for name, address in addresses.items():
            assert name in code
            code = code.replace(name, address)
        (outside / "program.py").write_text(code)
        command = [installed / "python", "-P", "program.py"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


def output_of(program):
    output, errors = program.communicate(timeout=100)
    assert program.returncode == 0, errors
    return output


def test_a_served_model_is_evaluated(start, engine):
    output = output_of(start(EVALUATE, **{"http://127.0.0.1:8000": engine}))
    assert output == "50 of 50 episodes have a reward, mean 0.000\n"  # it always says 0123456


def test_a_stopped_program_goes_on_when_it_is_started_again(start, engine, outside):
    program = start(RESUME, **{"http://127.0.0.1:8000": engine})
    lines = [program.stdout.readline() for _ in range(5)]
    program.send_signal(signal.SIGKILL)
    program.communicate(timeout=30)

    again = output_of(start(RESUME, **{"http://127.0.0.1:8000": engine})).splitlines(keepends=True)
    assert again[:5] == lines and len(again) == 200
    assert len({line.split()[1] for line in again}) == 200


def test_the_example_of_the_readme_collects_what_it_says(start, engine, outside):
    reward, example = blocks(PROJECT_ROOT / "README.md", "python")
    (outside / "my_rewards.py").write_text(reward)
    (outside / "test.jsonl").write_text('{"task_id": "1", "prompt": "17 + 25 =", "answer": "0123456"}\n')
    program = start(f"import sys\n\nsys.path.append('.')\n{example}", **{"http://127.0.0.1:8000": engine})
    lines = sorted(output_of(program).splitlines())  # siblings end in any order
    assert [line.split()[:2] for line in lines] == [[f"1:0:{sibling}", "1.0"] for sibling in range(4)]


@pytest.mark.vllm
async def test_groups_come_from_a_pool_with_their_tokens(start, vllm_server, outside):
    token = outside / "pool.token"
    token.write_text("secret of the pool\n")
    token.chmod(0o600)
    async with manager(f"token_file={token}", f"model={vllm_server.model}") as pool:
        pool.session.headers["Authorization"] = "Bearer secret of the pool"
        await pool.join(vllm_server.url)
        await pool.ready(1)
        program = start(GROUPS, **{"http://127.0.0.1:5000": pool.url})
        lines = (await asyncio.to_thread(output_of, program)).splitlines()
    assert len(lines) == 16 and all(line.endswith(" 0") for line in lines)
    for first in range(0, 16, 4):
        advantages = [float(line.split()[1]) for line in lines[first : first + 4]]
        assert len({line.split(":")[0] for line in lines[first : first + 4]}) == 1
        assert abs(sum(advantages)) < 0.03
