"""A function of the user's is enough to reward responses: TRL's forms, named rewards, and what is refused."""

import functools
import re

import pytest

from rl_agent.env.protocol import Environment
from rl_agent.env.reward_function import environment_of
from rl_agent.env.values import checked_result
from rl_agent.errors import EnvironmentRefusal
from rl_agent.types import Task

TASK = Task("sum", "2+2=", "score", "easy", answer="4", extra={"unit": "m", "levels": [1, 2]})


async def result_of(function, completion="4 m", task=TASK):
    kind = environment_of(function)
    kind.check_task(task)
    environment = kind()
    assert isinstance(environment, Environment)
    assert (await environment.reset(task, seed=0)).text == task.prompt
    result = checked_result(await environment.step(completion))
    await environment.close()
    assert result.done
    return result


def of_all(prompt, completion, **columns):
    return float((prompt, completion, columns) == ("2+2=", "4 m", ALL_COLUMNS))


ALL_COLUMNS = {"unit": "m", "levels": [1, 2], "task_id": "sum", "difficulty": "easy", "answer": "4"}


def of_some(completion, unit, answer, *, bonus=0.5):
    return bonus + (completion == f"{answer} {unit}")


async def of_coroutine(completion, answer):
    return answer in completion


def traced(function):
    return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))


def batched(prompts, completions, levels, **columns):
    assert columns["answer"] == ["4"]
    return [float(len(completion) + level[1]) for completion, level in zip(completions, levels, strict=True)]


async def batched_coroutine(completions, **columns):
    return [1] * len(completions)


@pytest.mark.parametrize(
    ("function", "reward"),
    [
        (of_all, 1.0),
        (of_some, 1.5),
        (of_coroutine, 1.0),
        (traced(of_some), 1.5),
        (batched, 5.0),
        (batched_coroutine, 1.0),
    ],
)
async def test_a_function_is_given_the_fields_it_names_and_its_number_counts(function, reward):
    result = await result_of(function)
    assert (result.reward, result.rewards) == (reward, {})


async def test_a_dict_gives_named_rewards():
    result = await result_of(lambda completion, answer: {"answer": answer in completion, "brief": 0.25})
    assert (result.reward, result.rewards) == (0.0, {"answer": 1.0, "brief": 0.25})


async def test_an_empty_response_is_rewarded_by_the_function_too():
    assert (await result_of(lambda completion: -1.0 if not completion else 0.0, "")).reward == -1.0


def returns(value):
    def score(completion):
        return value

    return score


def returns_batch(value):
    def score(completions, **columns):
        return value

    return score


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (returns(None), "None, not a number to learn from"),
        (returns(float("nan")), "nan, not a number"),
        (returns(10**400), "1000000000.*, not a number"),
        (returns("1.0"), "'1.0', not a number"),
        (returns([1.0]), r"\[1.0\], not a number"),
        (returns({"answer": None}), "None, not a number"),
        (returns_batch([1.0, 2.0]), r"\[1.0, 2.0\], not a list of one reward for a list of one completion"),
        (returns_batch(1.0), "1.0, not a list of one reward"),
        (returns_batch([None]), "None, not a number"),
    ],
)
async def test_a_result_that_is_no_number_is_refused_with_the_functions_line(function, shown):
    line = function.__code__.co_firstlineno
    place = re.escape(f"test_reward_function.py:{line}: score")
    with pytest.raises(EnvironmentRefusal, match=f"^{place} returned {shown}"):
        await result_of(function)


def of_completion_ids(completions, completion_ids, **columns):
    return [0.0]


@pytest.mark.parametrize(
    ("function", "task", "missing"),
    [(of_completion_ids, TASK, "completion_ids"), (of_some, Task("b", "?", "s", "easy"), "unit")],
)
def test_a_task_without_a_field_that_the_function_takes_is_refused(function, task, missing):
    message = rf"^no field {missing}, which test_reward_function.py:\d+: {function.__name__}"
    with pytest.raises(ValueError, match=message):
        environment_of(function).check_task(task)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda response: 1.0, "has neither a parameter `completion` nor `completions`; write def"),
        (lambda **columns: 1.0, "has neither a parameter `completion` nor `completions`"),
        (lambda completion, /: 1.0, "takes completion by position only"),
    ],
)
def test_parameters_that_no_task_could_fill_are_refused(function, problem):
    with pytest.raises(ValueError, match=problem):
        environment_of(function)
