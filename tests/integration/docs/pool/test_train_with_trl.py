"""docs/how-to/train-with-trl.md: the real GRPOTrainer, and a real pool that loses its only engine on the way.

`RL_AGENT_TRL_PYTHON` is a Python of an environment made as the page says, with TRL 1.16.
"""

import os
import re
import statistics
import textwrap

import pytest

from tests.integration.docs.pool.trl_page import SAMPLES, STEPS, TrlPage, changed, versions

PYTHON = os.environ.get("RL_AGENT_TRL_PYTHON", "")
pytestmark = [
    pytest.mark.extended,
    pytest.mark.vllm,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not PYTHON, reason="RL_AGENT_TRL_PYTHON names no Python with TRL"),
]


def of_processes(program: str, several: str) -> str:
    """Return the program with what the page says of several processes, for two steps."""
    publisher = "WeightPublisher(POOL, api_key=TOKEN)"
    main_alone = f'contextlib.nullcontext() if int(os.environ["RANK"]) else {publisher}'
    changes = {
        "    version = publisher.publish(trainer.model.state_dict())\n": textwrap.indent(several, "    "),
        "seed=step": "seed=seed",
        '"max_steps": 48': '"max_steps": 2, "use_cpu": True',
        "import json": "import contextlib\nimport json\nimport os\n\nimport accelerate",
        f"with {publisher} as": f"with ({main_alone}) as",
    }
    return changed(program, changes)


def test_trl_learns_though_its_only_engine_is_killed(tmp_path):
    page = TrlPage(tmp_path, PYTHON)
    launcher = f"{PYTHON} -m torch.distributed.run --nproc_per_node 2"
    with page.trained_past_a_kill(page.program) as printed:
        of_two = page.types(of_processes(page.program, page.several), page.command.replace(PYTHON, launcher))
        account = page.account()

    assert versions(printed) == [(step, str(step + 1)) for step in range(STEPS)]
    assert account["engine_deaths"] == 1 and account["requests"]["failed"] == 0
    assert account["requests"]["completed"] == account["requests"]["submitted"] == (STEPS + 4) * SAMPLES
    assert sorted(versions(of_two)) == [(step, str(STEPS + 1 + step)) for step in (0, 0, 1, 1)]
    rewards = [float(reward) for reward in re.findall(r"'reward': '([\d.]+)'", printed)]
    assert len(rewards) == STEPS
    means = [statistics.fmean(part) for part in (rewards[:12], rewards[-12:])]
    assert means[1] > means[0] + 0.05, means
