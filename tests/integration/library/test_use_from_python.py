"""The programs of docs/how-to/use-from-python.md, run as printed, from a wheel and outside the repository."""

import asyncio
import json
import signal
import subprocess
from contextlib import asynccontextmanager

import pytest

from rl_agent.paths import PROJECT_ROOT
from tests.support.pool_setup import manager
from tests.unit.docs.documented_blocks import blocks

PAGE = PROJECT_ROOT / "docs" / "how-to" / "use-from-python.md"
EVALUATE, GROUPS, RESUME, ANY_TRAINER = blocks(PAGE, "python")


@pytest.fixture
def start(installed, outside):
    """Start a program of the page, with another address in place of the page's."""

    def start(code, **addresses):
        assert len(code.splitlines()) < (50 if code == ANY_TRAINER else 30)
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


@asynccontextmanager
async def pool_with(server, folder):
    """Give the pool of the page: an engine, and its token in `pool.token`."""
    token = folder / "pool.token"
    token.write_text("secret of the pool\n")
    token.chmod(0o600)
    async with manager(f"token_file={token}", f"model={server.model}") as pool:
        pool.session.headers["Authorization"] = "Bearer secret of the pool"
        await pool.join_ready(server.url)
        yield pool


@pytest.mark.vllm
async def test_groups_come_from_a_pool_with_their_tokens(start, vllm_server, outside):
    async with pool_with(vllm_server, outside) as pool:
        program = start(GROUPS, **{"http://127.0.0.1:5000": pool.url})
        lines = (await asyncio.to_thread(output_of, program)).splitlines()
    assert len(lines) == 16 and all(line.endswith(" 0") for line in lines)
    for first in range(0, 16, 4):
        advantages = [float(line.split()[1]) for line in lines[first : first + 4]]
        assert len({line.split(":")[0] for line in lines[first : first + 4]}) == 1
        assert abs(sum(advantages)) < 0.03


@pytest.mark.vllm
async def test_a_trainer_over_http_that_is_killed_has_each_group_once(start, vllm_server, outside):
    async with pool_with(vllm_server, outside) as pool:
        program = start(ANY_TRAINER, **{"http://127.0.0.1:5000": pool.url})
        first = [await asyncio.to_thread(program.stdout.readline) for _ in range(5)]
        program.send_signal(signal.SIGKILL)
        rest = await asyncio.to_thread(program.stdout.read)
        program.communicate()
        again = start(ANY_TRAINER, **{"http://127.0.0.1:5000": pool.url})
        lines = (await asyncio.to_thread(output_of, again)).splitlines()
    names = [line.split()[0] for line in ("".join(first) + rest).splitlines()]
    trained = json.loads((outside / "checkpoint.json").read_text())
    assert trained == {"cursor": 32, "groups": 8}
    told = names + [line.split()[0] for line in lines]
    assert {f"prompt-{n}-{sibling}" for n in range(8) for sibling in range(4)} == set(told)
    assert len(told) - 32 in (0, 1, 2, 3, 4)  # the group that was under way is trained on again
    assert all(line.endswith(" {0}") for line in lines)
