"""Episodes collected from Python, by the collector of a run, against an engine that speaks vLLM's HTTP."""

import asyncio
import re

import pytest

from rl_agent import Observation, StepResult, collect
from rl_agent.errors import ConfigError, RetryLater

TASKS = [{"prompt": f"{number} + 1 =", "answer": str(number)} for number in range(5)]


def score(completion, answer):
    return float(answer in completion)


async def test_an_episode_has_tokens_logprobs_version_and_reward(engine):
    episodes = await collect(TASKS, engine, reward=score, group_size=2)
    assert sorted(str(episode.key) for episode in episodes) == [
        f"{i}:0:{k}" for i in range(5) for k in range(2)
    ]
    for episode in episodes:
        (step,) = episode.steps
        assert episode.reward == 1.0 and episode.weight_version_min == 0
        assert len(step.generation.token_ids) == len(step.generation.logprobs) == 8
        assert step.generation.text == "0123456" and step.prompt_token_ids


async def test_a_loop_without_await_runs_where_an_event_loop_runs(engine):
    assert [episode.reward for episode in collect(TASKS, engine, reward=score)] == [1.0] * 5


def test_siblings_come_together_and_in_their_order(engine):
    groups = list(collect(TASKS, engine, reward=score, group_size=3).groups())
    assert [[episode.key.attempt for episode in group] for group in groups] == [[0, 1, 2]] * 5
    assert len({group[0].key.task_id for group in groups}) == 5


class Twice:
    """Asks for another response after the first."""

    async def reset(self, task, seed):
        self.steps = 0
        return Observation(task.prompt)

    async def step(self, action):
        self.steps += 1
        return StepResult(Observation(f"again, not {action}"), reward=0.5, done=self.steps == 2)

    async def close(self):
        pass


async def test_a_class_of_this_process_is_an_environment(engine):
    episodes = await collect(TASKS, engine, environment=Twice)
    assert [(episode.reward, len(episode.steps)) for episode in episodes] == [(1.0, 2)] * 5


async def test_a_reward_takes_the_place_of_the_environment_that_tasks_name(engine):
    def tenth(completion):
        return 0.1

    episodes = await collect([task | {"env": "math"} for task in TASKS], engine, reward=tenth)
    assert {(episode.reward, episode.task.env) for episode in episodes} == {(0.1, "tenth")}


async def test_settings_are_words_of_a_run_and_reach_the_engine(engine):
    (episode, *_) = await collect(TASKS, engine, reward=score, settings=["policy_config.max_new_tokens=3"])
    assert episode.steps[0].generation.finish_reason == "length"


async def test_a_reward_that_raises_fails_the_episode_and_is_named(engine, caplog):
    def broken(completion):
        raise KeyError(completion)

    episodes = await collect(TASKS, engine, reward=broken, settings=["env_config.attempts=1"])
    assert {(episode.status, episode.reward) for episode in episodes} == {("failed", None)}
    assert "5 x EnvironmentFailure: step failed: test_collect.py:" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"tasks": []}, "there is no task"),
        ({"tasks": [{"answer": "1"}]}, "task 0: no prompt"),
        ({"tasks": [{"prompt": "1 + 1 ="}]}, "no field answer, which test_collect.py"),
        ({"reward": lambda text: 1.0}, "has neither a parameter `completion`"),
        ({"reward": score, "environment": "math"}, "give one of them"),
        ({"settings": ["env_config.sever_size=3"]}, "did you mean env_config.server_size"),
        ({"settings": ["rollout.reward=judge"]}, "ask it in a reward function"),
        ({"reward": None, "environment": "mathematics"}, "task 0: unknown env 'mathematics'; use one of"),
        ({"reward": None}, "task 0: no env; name its environment, or give collect a reward"),
        ({"reward": None, "environment": int}, "environment: not an Environment; it lacks async def reset"),
        ({"reward": None, "environment": Twice()}, "environment: neither a class nor a function"),
        ({"engine": "127.0.0.1:8000"}, "engine=127.0.0.1:8000: expected http://HOST:PORT"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_runs(arguments, problem):
    with pytest.raises(ConfigError, match=re.escape(problem)):
        collect(**{"tasks": TASKS, "engine": "http://127.0.0.1:1", "reward": score} | arguments)


def test_an_engine_that_is_not_there_ends_the_loop_with_its_address():
    with pytest.raises(RetryLater, match=r"http://127.0.0.1:1 does not answer"):
        list(collect(TASKS, "http://127.0.0.1:1", reward=score))


def test_weights_of_a_version_are_asked_of_a_pool_alone(engine):
    with pytest.raises(ConfigError, match="min_weight_version: only a pool knows"):
        list(collect(TASKS, engine, reward=score, min_weight_version=1))


async def test_leaving_a_loop_ends_what_it_has_begun(engine):
    async for _ in collect(TASKS, engine, reward=score, settings=["env_config.server_size=1"]):
        break
    async with asyncio.timeout(30):
        while any(job.get_name() == "collect" for job in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
