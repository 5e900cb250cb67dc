"""reasoning_gym and math: real verifiers in worker processes that cannot hang or harm the rollout."""

import asyncio
import signal
from contextlib import suppress

import pytest

from rl_agent.env import verifier
from rl_agent.env.math import MathEnvironment
from rl_agent.env.reasoning_gym import ReasoningGymEnvironment
from rl_agent.errors import EnvironmentFailure, EnvironmentUnavailable
from rl_agent.types import Task

# One event loop for the file, so that the workers are started once.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", autouse=True)
def workers_end_with_the_tests():
    yield
    verifier.close_pool("math")
    verifier.close_pool("reasoning_gym")


def math_task(answer):
    return Task("m", "How much?", "math", "easy", answer)


def gym_task(dataset, answer, **metadata):
    extra = {"dataset": dataset, "entry_metadata": metadata}
    return Task("g", "Well?", "reasoning_gym", "easy", answer, extra)


async def score(environment, task, response):
    observation = await environment.reset(task, seed=0)
    assert observation.text == task.prompt
    result = await environment.step(response)
    await environment.close()
    assert result.done
    return result.reward


@pytest.mark.parametrize(
    ("task", "response", "reward"),
    [
        (gym_task("gcd", "12"), "12", 1.0),
        (gym_task("gcd", "12"), "<think>\nhm 13</think>\n12\n", 1.0),
        (gym_task("gcd", "12"), "I think <answer>13</answer>, no, <answer> 12 </answer>.", 1.0),
        (gym_task("gcd", "12"), "13", 0.0),
        (gym_task("gcd", "12"), "", 0.0),
        (gym_task("countdown", "3*4", target=12, numbers=[3, 4]), " ", 0.0),  # 0.05 by the library
        (gym_task("gcd", "12"), "is 12", pytest.approx(0.4)),  # the library's own partial credit
        (gym_task("spiral_matrix", "1 2 4 3"), "[1, 2, 4, 3]", 0.1),
        (gym_task("countdown", "3*4", target=12, numbers=[3, 4]), "4*3", 1.0),
        (gym_task("countdown", "3*4", target=12, numbers=[3, 4]), "4+3", 0.05),
    ],
)
async def test_reasoning_gym_gives_the_librarys_own_score(task, response, reward):
    assert await score(ReasoningGymEnvironment(), task, response) == reward


async def test_a_task_that_the_verifier_cannot_use_is_a_failure_not_a_reward():
    with pytest.raises(EnvironmentFailure, match=r"cannot score this task: ValueError.*no_such_dataset"):
        await score(ReasoningGymEnvironment(), gym_task("no_such_dataset", "1"), "1")
    with pytest.raises(EnvironmentFailure, match="finds no mathematics in the reference answer"):
        await score(MathEnvironment(), math_task("\\text{ }"), "\\boxed{1}")


@pytest.mark.parametrize(
    ("environment", "task", "message"),
    [
        (MathEnvironment, math_task(None), "no answer"),
        (ReasoningGymEnvironment, gym_task("gcd", None), "no answer"),
        (ReasoningGymEnvironment, Task("g", "?", "reasoning_gym", "easy", "1"), "no dataset"),
    ],
)
async def test_an_incomplete_task_is_refused_before_the_run_and_at_reset(environment, task, message):
    with pytest.raises(ValueError, match=message):
        environment.check_task(task)
    with pytest.raises(EnvironmentFailure, match=message):
        await environment().reset(task, seed=0)


async def test_plain_numbers_and_words_take_no_worker():
    verifier.close_pool("math")
    assert await score(MathEnvironment(), math_task("42"), "It is 42.") == 1.0
    assert await score(MathEnvironment(), math_task("\\boxed{42}"), "43") == 0.0
    assert await score(MathEnvironment(), math_task("Paris"), "The answer is Paris.") == 1.0
    assert "math" not in verifier._pools


async def test_hundreds_are_scored_at_once_each_with_its_own_answer():
    responses = [f"{i % 3}x" for i in range(300)]
    rewards = await asyncio.gather(
        *(score(MathEnvironment(), math_task("2x"), response) for response in responses)
    )

    assert rewards == [float(response == "2x") for response in responses]


HANGS = "\\boxed{9^{9^{9^{9}}}}"


async def test_an_answer_that_hangs_the_verifier_scores_zero_and_the_next_works():
    assert await score(MathEnvironment(), math_task("2x"), "2x") == 1.0
    assert await score(MathEnvironment(verify_timeout_s=0.3), math_task("7x"), HANGS) == 0.0
    assert await score(MathEnvironment(), math_task("2x"), "2x") == 1.0


async def test_an_unstartable_verifier_ends_the_rollout_a_crashed_one_an_episode(tmp_path, monkeypatch):
    assert await score(MathEnvironment(), math_task("2x"), "2x") == 1.0
    (tmp_path / "math_verify.py").write_text("raise ImportError('half installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (worker,) = verifier.shared_pool("math", 1)._idle
    worker.process.kill()
    with pytest.raises(EnvironmentFailure, match="died over an answer"):
        await score(MathEnvironment(), math_task("2x"), "2x")
    with pytest.raises(EnvironmentFailure, match="does not start"):
        await score(MathEnvironment(), math_task("2x"), "2x")

    verifier.close_pool("math")
    with pytest.raises(EnvironmentUnavailable, match="the math verifier does not start"):
        await score(MathEnvironment(), math_task("2x"), "2x")


async def test_a_cancelled_step_ends_its_worker_and_leaves_a_working_pool():
    assert await score(MathEnvironment(), math_task("2x"), "2x") == 1.0
    pool = verifier.shared_pool("math", 1)
    (worker,) = pool._idle
    environment = MathEnvironment()
    await environment.reset(math_task("7x"), seed=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await environment.step(HANGS)

    assert worker.process.returncode == -signal.SIGKILL
    assert await score(MathEnvironment(), math_task("2x"), "2x") == 1.0


ATTACK = "__import__('pathlib').Path({path!r}).touch()"


@pytest.mark.parametrize("dataset", ["spiral_matrix", "countdown", "simple_integration", "n_queens"])
async def test_an_answer_is_never_executed(dataset, tmp_path):
    canary = tmp_path / "executed"
    task = gym_task(
        dataset, "1", target=1, numbers=[1], variable="x", integrand="1", solutions=[[]], valid_answers=[]
    )
    with suppress(EnvironmentFailure):  # not every dataset's metadata is complete above
        assert await score(ReasoningGymEnvironment(), task, ATTACK.format(path=str(canary))) < 1
    assert not canary.exists()
