"""A process that runs one rollout after another keeps a few verifiers; any other process keeps none."""

import asyncio
from pathlib import Path

import pytest

from rl_agent.env import verifier
from rl_agent.env.math import MathEnvironment
from rl_agent.types import Task


@pytest.fixture(autouse=True)
def nothing_is_kept_afterwards():
    yield
    verifier._close_all()


def rollout() -> int:
    """One episode; returns the process id of the worker that scored it."""

    async def run() -> int:
        environment = MathEnvironment()
        await environment.reset(Task("m", "How much?", "math", "easy", "2x"), seed=0)
        assert (await environment.step("2x")).reward == 1.0
        pool = verifier._pools["math"]
        pid = pool._idle[0].process.pid
        await MathEnvironment.close_shared()
        return pid

    return asyncio.run(run())


def test_a_kept_verifier_scores_the_next_rollout_and_ends_with_the_process():
    verifier.keep_workers(1)
    first = rollout()
    assert rollout() == first

    kept = verifier._kept["math"][0].process
    verifier._close_all()
    assert kept.poll() is not None


def test_a_kept_verifier_that_died_is_replaced():
    verifier.keep_workers(1)
    first = rollout()
    worker = verifier._kept["math"][0]
    worker.process.kill()
    worker.process.wait()

    assert rollout() != first


def test_a_verifier_inherits_no_keys(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "kept")
    verifier.keep_workers(1)
    rollout()
    variables = Path(f"/proc/{verifier._kept['math'][0].process.pid}/environ").read_text()
    assert "secret" not in variables and "TOKENIZERS_PARALLELISM=kept" in variables


def test_nothing_is_kept_unless_it_is_asked_for():
    rollout()
    assert not verifier._kept.get("math")
