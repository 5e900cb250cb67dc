"""Answers to mathematical problems are rewarded by the verifier in its worker process."""

import pytest

from rl_agent.env import verifier
from rl_agent.env.math import MathEnvironment
from rl_agent.types import Task
from tests.unit.env.math_answers import CASES

# One event loop for the file, so that the worker is started once.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", autouse=True)
def workers_end_with_the_tests():
    yield
    verifier.close_pool("math")


async def score(reference, response, **settings):
    environment = MathEnvironment(**settings)
    await environment.reset(Task("m", "How much?", "math", "easy", reference), seed=0)
    result = await environment.step(response)
    assert result.done
    return result.reward


@pytest.mark.parametrize(("reference", "response", "reward"), CASES)
async def test_an_answer_earns_its_reward(reference, response, reward):
    assert await score(reference, response) == reward


@pytest.mark.parametrize("reference", sorted({reference for reference, _, reward in CASES if reward}))
async def test_a_reference_answer_is_right_as_it_stands(reference):
    assert await score(reference, reference if "boxed" in reference else f"\\boxed{{{reference}}}") == 1


@pytest.mark.parametrize(
    ("response", "reward"),
    [("12 + 30", 1), ("\\boxed{12+30}", 1), ("84/2", 1), ("42", 1), ("41", 0), ("\\neq 42", 0)],
)
async def test_expressions_count_where_the_setting_allows_them(response, reward):
    assert await score("42", response, expressions=True) == reward
