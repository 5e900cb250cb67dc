"""The changes of our server in vLLM work on the real one."""

import json
import subprocess
import sys

import pytest

from tests.integration.tiny_model import make_tiny_model

pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(300)]

HASHES = """
import json, sys
from vllm.config import ModelConfig
from vllm.engine.arg_utils import EngineArgs
from rl_agent.engine.vllm_serve import share_compiled_code

folders = sys.argv[1:]
made = [EngineArgs(model=folder, max_model_len=64).create_model_config() for folder in folders]
before = [config.compute_hash() for config in made]
share_compiled_code(ModelConfig)
after = [config.compute_hash() for config in made]
print(json.dumps({"before": before, "after": after, "model": [config.model for config in made]}))
"""


def test_versions_of_a_model_share_compiled_code_and_other_models_do_not(tmp_path):
    folders = [
        make_tiny_model(tmp_path / "version-1"),
        make_tiny_model(tmp_path / "version-2", seed=1),
        make_tiny_model(tmp_path / "other", layers=1),
    ]
    command = [sys.executable, "-c", HASHES, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    hashes = json.loads(done.stdout.splitlines()[-1])
    assert len(set(hashes["before"])) == 3, "vLLM leaves the path out by itself: share_compiled_code may go"
    first, second, other = hashes["after"]
    assert first == second != other
    assert hashes["model"] == list(map(str, folders)), "the engine still loads what it was told to"
