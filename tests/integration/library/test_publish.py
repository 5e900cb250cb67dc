"""Weights that a program publishes are versions of its pool, and engines can fetch them."""

import asyncio
import contextlib
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from yarl import URL

from rl_agent import WeightPublisher
from rl_agent.errors import DeadlineError, WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.sources.source_tcp import TcpSource
from tests.integration.tiny_model import make_tiny_model
from tests.support.pool_setup import manager


def fetched(weights):
    """Return the manifest of what a pool offers, from where it says."""
    url = URL(weights.sources[0])
    source = TcpSource(url.host, url.port, weights.transfer_token.encode(), 5.0)
    with contextlib.closing(source.connection()) as connection:
        connection.open(Deadline.after(10))
        return connection.manifest(weights.weight_version, weights.digest, Deadline.after(10))


async def test_a_folder_and_tensors_become_versions_of_the_pool(tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    tensors = {name: tensor + 1 for name, tensor in load_file(folder / "model.safetensors").items()}

    async with manager() as pool:

        def program():
            with WeightPublisher(pool.url, settings=[f"store={tmp_path}"]) as publisher:
                first = publisher.publish(folder)
                second = publisher.publish(tensors)
                manifest = fetched(pool.state.weights)
            return first, second, manifest

        first, second, manifest = await asyncio.to_thread(program)
        assert (first, second, pool.state.weights.weight_version) == (1, 2, 2)
        assert {tensor.name for tensor in manifest.tensors} == set(tensors)
        assert not list(tmp_path.glob("rl-agent-*/*/version-*"))

        again = await asyncio.to_thread(program)
        assert again[:2] == (3, 4)  # a number never stands for two contents


async def test_tensors_are_published_in_the_type_that_engines_hold(tmp_path):
    async with manager() as pool:

        def program():
            words = [f"store={tmp_path}", "serving_dtype=BF16"]
            with WeightPublisher(pool.url, settings=words) as publisher:
                publisher.publish({"weight": torch.ones(2, 2)})
                return fetched(pool.state.weights)

        (tensor,) = (await asyncio.to_thread(program)).tensors
        assert tensor.dtype == "BF16"


def test_a_pool_that_is_gone_and_weights_of_nan_are_refused(tmp_path):
    with WeightPublisher("http://127.0.0.1:1", settings=[f"store={tmp_path}"]) as publisher:
        with pytest.raises(DeadlineError, match=r"http://127.0.0.1:1: does not know weight version 1"):
            publisher.publish({"weight": torch.zeros(2, 2)}, timeout_s=0.5)
        with pytest.raises(WeightsError, match="NaN or infinity"):
            publisher.publish({"weight": torch.full((2, 2), torch.nan)})


def test_a_publisher_needs_no_library_that_only_trains(tmp_path):
    code = """
import sys
sys.modules.update(dict.fromkeys(("deepspeed", "llamafactory", "peft", "transformers")))
from rl_agent import WeightPublisher
with WeightPublisher("http://127.0.0.1:1", settings=["store=."]):
    pass
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=100)


def test_versions_that_a_killed_program_left_are_removed_by_the_next(tmp_path):
    code = """
import os, signal
from rl_agent import WeightPublisher
with WeightPublisher("http://127.0.0.1:1", settings=["store=."]):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=100)
    (left,) = tmp_path.glob("rl-agent-*")
    os.utime(left, (0, 0))  # young folders may be in the making
    with WeightPublisher("http://127.0.0.1:1", settings=[f"store={tmp_path}"]):
        assert not left.exists()
