"""docs/how-to/train-with-trl.md: the real GRPOTrainer, and a real pool that loses its only engine on the way.

`RL_AGENT_TRL_PYTHON` is a Python of an environment made as the page says, with TRL 1.16.
"""

import os
import re
import signal
import statistics
import textwrap

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.pool.client import ask
from tests.integration.docs.reader import Reader
from tests.unit.docs.documented_blocks import blocks

PAGE = "docs/how-to/train-with-trl.md"
PYTHON = os.environ.get("RL_AGENT_TRL_PYTHON", "")
ENGINE_ARGS = (
    "--dtype float32 --enforce-eager --max-model-len 128 --max-num-seqs 128 --no-enable-chunked-prefill"
    " --kv-cache-memory-bytes 67108864 --distributed-executor-backend uni"
)
STEPS = 48
pytestmark = [
    pytest.mark.extended,
    pytest.mark.vllm,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not PYTHON, reason="RL_AGENT_TRL_PYTHON names no Python with TRL"),
]


def of_processes(program: str, several: str) -> str:
    """Return the program with what the page says of several processes, for two steps."""
    changes = {
        "    version = publisher.publish(trainer.model.state_dict())\n": textwrap.indent(several, "    "),
        "seed=step": "seed=seed",
        '"max_steps": 48': '"max_steps": 2, "use_cpu": True',
        "import json": "import contextlib\nimport json\nimport os\n\nimport accelerate",
        "with WeightPublisher(POOL, api_key=TOKEN) as": "with ("
        'contextlib.nullcontext() if int(os.environ["RANK"]) else WeightPublisher(POOL, api_key=TOKEN)) as',
    }
    for written, typed in changes.items():
        assert written in program
        program = program.replace(written, typed)
    return program


def test_trl_learns_though_its_only_engine_is_killed(tmp_path):
    manager = f"http://127.0.0.1:{free_port()}"
    instead = {
        "http://127.0.0.1:5000": manager,
        "manager model=": f"manager port={manager.rpartition(':')[2]} model=",
        "--gpus 0": f"--engine-args '{ENGINE_ARGS}'",
        "env/bin/python trl_grpo.py": f"{PYTHON} trl_grpo.py",
    }
    reader = Reader(PAGE, tmp_path, instead)
    reader.environment |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(reader.checkout),
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    *prepare, serve = reader.commands("python data/make_tasks.py")
    reader.types("\n".join(prepare), timeout_s=600)
    folder = reader.home / "trl"
    program, several = blocks(reader.page, "python")
    program = program.replace("http://127.0.0.1:5000", manager)
    (folder / "trl_grpo.py").write_text(program)
    join = reader.block("bash scripts/join_pool.sh")
    *_, train = reader.commands("python3 -m venv")
    token = (folder / "pool.token").read_text().strip()

    def running() -> int:
        return ask(manager, "/status", token)["requests"]["running"]

    with reader.leaves_running(serve) as pool, reader.leaves_running(join) as engine:
        engine.wait_for("is registered", 300)
        with reader.leaves_running(train) as training:
            training.wait_for("step 15: weights", 600)
            training.wait_until(running, 60)
            os.killpg(engine.process.pid, signal.SIGKILL)
            with reader.leaves_running(join) as other:
                printed = training.ends_well(900)
                (folder / "trl_grpo.py").write_text(of_processes(program, several))
                launcher = f"{PYTHON} -m torch.distributed.run --nproc_per_node 2"
                of_two = reader.types(train.replace(PYTHON, launcher), timeout_s=600)
                assert other.process.poll() is None
        account = ask(manager, "/status", token)
        assert pool.process.poll() is None

    versions = re.findall(r"step (\d+): weights \[(.*)\]", printed)
    assert versions == [(str(step), str(step + 1)) for step in range(STEPS)]
    assert account["engine_deaths"] == 1 and account["requests"]["failed"] == 0
    assert account["requests"]["completed"] == account["requests"]["submitted"] == (STEPS + 4) * 128
    versions = sorted(re.findall(r"step (\d+): weights \[(.*)\]", of_two))
    assert versions == [(str(step), str(STEPS + 1 + step)) for step in (0, 0, 1, 1)]
    rewards = [float(reward) for reward in re.findall(r"'reward': '([\d.]+)'", printed)]
    assert len(rewards) == STEPS
    means = [statistics.fmean(part) for part in (rewards[:12], rewards[-12:])]
    assert means[1] > means[0] + 0.05, means
