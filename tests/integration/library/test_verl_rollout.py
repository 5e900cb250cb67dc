"""docs/how-to/train-with-verl.md: verl's real main_ppo, and a pool that loses its only engine on the way.

`RL_AGENT_VERL_PYTHON` is a Python of an environment made as the page says, with `verl[verl-core]==0.9.1` and
torch in place of `verl[fsdp]` where there is no GPU.
"""

import json
import os
import re
import signal
import statistics
import subprocess

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.paths import PROJECT_ROOT
from rl_agent.pool.client import ask
from tests.integration.docs.reader import Reader
from tests.unit.docs.documented_blocks import blocks

PAGE = "docs/how-to/train-with-verl.md"
PYTHON = os.environ.get("RL_AGENT_VERL_PYTHON", "")
ENGINE_ARGS = (
    "--dtype float32 --enforce-eager --max-model-len 128 --max-num-seqs 128 --no-enable-chunked-prefill"
    " --kv-cache-memory-bytes 67108864 --distributed-executor-backend uni"
)
STEPS = 24
EPISODES = 32 * 8
ON_A_CPU = (
    "trainer.device=cpu '+ray_kwargs.ray_init.resources={NPU: 1}' ray_kwargs.ray_init.num_cpus=32"
    " transfer_queue.backend.SimpleStorage.num_data_storage_units=1 data.dataloader_num_workers=0"
    " actor_rollout_ref.rollout.agent.num_workers=1 reward.num_workers=1"
    " actor_rollout_ref.rollout.dtype=float32"
    " actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.fsdp_config.use_torch_compile=False"
    " '+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype: fp32}'"
    " actor_rollout_ref.model.use_remove_padding=False"
    " +actor_rollout_ref.model.override_config.attn_implementation=sdpa"
)
"""Stand-ins for verl's needs where there is no GPU; `verl_on_cpu` is the platform that it lacks."""
REFUSALS = """
import asyncio, json, sys
from types import SimpleNamespace
from rl_agent.errors import ConfigError
from rl_agent.library.verl_rollout import PoolServer

def refusal(keys, **changed):
    shape = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "response_length": 8, "prompt_length": 8}
    rollout = shape | {"calculate_log_probs": True, "engine_kwargs": {"rl_agent": keys}} | changed
    try:
        server = PoolServer(SimpleNamespace(**rollout))
        server._sampling(4, SAMPLED)
    except ConfigError as error:
        return str(error)

POOL = {"pool": "http://127.0.0.1:1"}
SAMPLED = {}
said = [refusal(POOL), refusal({}), refusal(POOL | {"tokens": "x"}), refusal(POOL, temperature=0.7)]
SAMPLED = {"repetition_penalty": 1.1}
said.append(refusal(POOL))
SAMPLED = {"repetition_penalty": 1.0, "stop": ["end"]}
print(json.dumps([*said, refusal(POOL)]))
"""
pytestmark = [
    pytest.mark.extended,
    pytest.mark.vllm,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not PYTHON, reason="RL_AGENT_VERL_PYTHON names no Python with verl"),
]


def test_verl_trains_though_its_only_engine_is_killed(tmp_path):
    manager = f"http://127.0.0.1:{free_port()}"
    instead = {
        "http://127.0.0.1:5000": manager,
        "manager model=": f"manager port={manager.rpartition(':')[2]} model=",
        "--gpus 0": f"--engine-args '{ENGINE_ARGS}'",
        "env/bin/python": PYTHON,
    }
    reader = Reader(PAGE, tmp_path, instead)
    reader.environment |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{reader.checkout}:{PROJECT_ROOT / 'tests' / 'integration' / 'library'}",
        "RAY_DEDUP_LOGS": "0",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    *prepare, serve = reader.commands("python data/make_tasks.py")
    reader.types("\n".join(prepare), timeout_s=600)
    folder = reader.home / "verl"
    (folder / "sums.py").write_text(blocks(reader.page, "python")[0])
    join = reader.block("bash scripts/join_pool.sh")
    *_, write_tasks, train = reader.commands("python3 -m venv")
    token = (folder / "pool.token").read_text().strip()
    train = f"{write_tasks}\n{train} {ON_A_CPU} trainer.rollout_data_dir={folder}/rollouts"

    def running() -> int:
        return ask(manager, "/status", token)["requests"]["running"]

    with reader.leaves_running(serve) as pool, reader.leaves_running(join) as engine:
        engine.wait_for("is registered", 300)
        with reader.leaves_running(train) as training:
            training.wait_for("step:8 ", 600)
            training.wait_until(running, 60)
            os.killpg(engine.process.pid, signal.SIGKILL)
            with reader.leaves_running(join):
                printed = training.ends_well(900)
        account = ask(manager, "/status", token)
        assert pool.process.poll() is None

    def logged(metric: str) -> list[float]:
        return [float(value) for value in re.findall(rf"\b{metric}:([\d.e+-]+)", printed)]

    assert logged("training/global_step") == [*range(1, STEPS + 1)]
    assert account["engine_deaths"] == 1 and account["requests"]["failed"] == 0
    assert account["weight_version"] == STEPS + 1
    assert account["requests"]["completed"] == STEPS * EPISODES + 2 * 400
    # verl computes each sampled token's probability anew, with the weights that it published.
    assert len(logged("training/rollout_probs_diff_max")) == STEPS
    assert max(logged("training/rollout_probs_diff_max")) < 1e-4
    for step, mean in enumerate(logged("critic/rewards/mean"), 1):
        lines = (folder / "rollouts" / f"{step}.jsonl").read_text().splitlines()
        assert len(lines) == EPISODES
        assert statistics.fmean(json.loads(line)["score"] for line in lines) == pytest.approx(mean)


def test_what_a_pool_cannot_do_for_verl_is_refused_by_its_key():
    environment = os.environ | {"PYTHONPATH": str(PROJECT_ROOT)}
    done = subprocess.run(
        [PYTHON, "-c", REFUSALS], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    fine, without, unknown, hot, penalty, stop = json.loads(done.stdout)
    assert fine is None
    assert "expected pool=http://HOST:PORT" in without and "'tokens'" in unknown
    assert "calculate_log_probs" in hot
    assert "penalties" in penalty and "{'stop': ['end']}" in stop
