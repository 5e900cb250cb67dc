"""docs/how-to/add-an-environment.md does what it says, with the code that stands in it."""

import sys

import pytest
import yaml

import rl_agent.env
from rl_agent.config.sections.env import EnvConfig
from rl_agent.env.registry import EnvironmentRegistry
from rl_agent.errors import ConfigError
from rl_agent.paths import PROJECT_ROOT
from rl_agent.plan.caller import with_callers_kinds
from rl_agent.tasks.load import load_tasks
from rl_agent.types import Task
from tests.unit.docs.documented_blocks import blocks

PAGE = PROJECT_ROOT / "docs" / "how-to" / "add-an-environment.md"


def block(language, number=0):
    return blocks(PAGE, language)[number]


@pytest.fixture
def tasks_and_registry(tmp_path, monkeypatch):
    """The page's three files, the first of them as if it stood in rl_agent/env."""
    (tmp_path / "guess_number.py").write_text(block("python", 1))
    monkeypatch.setattr(rl_agent.env, "__path__", [*rl_agent.env.__path__, str(tmp_path)])
    (tmp_path / "train.jsonl").write_text(block("json", 1))
    env_config = EnvConfig.model_construct(
        **yaml.safe_load(block("yaml")),
        default_env="none",
        module_folders=(),
        kwargs={"guess_number": {"highest": 50}},
    )
    yield load_tasks(tmp_path / "train.jsonl", env_config), EnvironmentRegistry(env_config)
    sys.modules.pop("rl_agent.env.guess_number", None)


async def test_the_function_of_the_page_scores_its_task_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_rewards.py").write_text(block("python"))
    (tmp_path / "train.jsonl").write_text(block("json"))
    typed = EnvConfig.model_construct(
        default_env="my_rewards.py:score", kinds={}, module_folders=(), kwargs={}
    )
    env_config = with_callers_kinds(typed, tmp_path)
    (task,), registry = load_tasks(tmp_path / "train.jsonl", env_config), EnvironmentRegistry(env_config)
    registry.check_tasks([task])
    environment = registry.create(task.env)
    rewards = []
    for response in ("42 ", "It is 42.", ""):
        await environment.reset(task, seed=0)
        rewards.append((await environment.step(response)).reward)
    sys.modules.pop("my_rewards", None)

    assert rewards == [1.0, 0.0, 0.0]


async def test_the_class_is_found_by_the_config_line_and_plays_the_task_line(tasks_and_registry):
    (task,), registry = tasks_and_registry
    registry.check_tasks([task])
    environment = registry.create(task.env)
    observation = await environment.reset(task, seed=0)
    results = [await environment.step(action) for action in ("50", "?", task.answer)]

    assert observation.text == "Guess my number. It is between 1 and 50."
    assert [result.observation.text for result in results][::2] == ["Lower.", "Right."]
    assert [(result.reward, result.done, result.changed) for result in results] == [
        (0, False, True),
        (0, False, False),
        (1, True, True),
    ]


def test_a_task_it_cannot_run_is_found_before_the_run(tasks_and_registry):
    (task,), registry = tasks_and_registry
    bad = type(task)(task.task_id, task.prompt, task.env, task.difficulty, answer="many")

    with pytest.raises(ConfigError, match="task guess-1: the answer is not a whole number"):
        registry.check_tasks([bad])


def test_the_snippet_prints_what_the_page_shows(tasks_and_registry, capsys):
    exec(compile(block("python", 2), "add-an-environment.md", "exec"), {"__name__": "snippet"})

    assert capsys.readouterr().out == block("text")


async def test_the_subclass_of_the_page_gives_two_named_rewards():
    namespace = {"__name__": "snippet"}
    exec(compile(block("python", 3), "add-an-environment.md", "exec"), namespace)
    environment = namespace["BoxedMath"]()
    try:
        await environment.reset(Task("sum", "2+2=", "math", "easy", answer="4"), 0)
        result = await environment.step(r"It is \boxed{4}.")
    finally:
        await environment.close()
        await environment.close_shared()
    assert (result.reward, result.rewards) == (0.0, {"answer": 1.0, "format": 1.0})
