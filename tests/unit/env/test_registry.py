"""A name in the configuration leads to an environment, or to one clear line."""

import asyncio
import re

import pytest

from rl_agent.config.sections.env import EnvConfig
from rl_agent.env.protocol import Environment
from rl_agent.env.registry import EnvironmentRegistry
from rl_agent.errors import ConfigError
from rl_agent.types import Observation, StepResult, Task


class Echo:
    def __init__(self, *, prefix: str = "") -> None:
        self.prefix = prefix

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation(self.prefix + task.prompt)

    async def step(self, action: str) -> StepResult:
        return StepResult(Observation(self.prefix + action), done=True)

    async def close(self) -> None:
        pass

    @staticmethod
    def check_task(task: Task) -> None:
        if task.answer is None:
            raise ValueError("no answer; give it one")


class Mute:
    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation("")

    def step(self, action: str) -> StepResult:
        return StepResult(Observation(""))


PLAY = Task("a", "hello", "echo", "easy", answer="1")


def is_echo(completion, answer):
    return completion == answer


def registry(dotted, **kwargs):
    env_config = EnvConfig.model_construct(kinds={"echo": dotted}, module_folders=(), kwargs={"echo": kwargs})
    return EnvironmentRegistry(env_config)


async def test_an_environment_is_made_with_the_kwargs_of_its_kind():
    environment = registry(f"{__name__}:Echo", prefix="> ").create("echo")

    assert isinstance(environment, Environment)
    assert await environment.reset(Task("a", "hello", "echo", "easy"), seed=0) == Observation("> hello")


async def test_a_function_is_an_environment_of_one_turn():
    environments = registry(f"{__name__}:is_echo")
    environments.check(["echo"])
    environments.check_tasks([PLAY])
    environment = environments.create("echo")

    assert await environment.reset(PLAY, seed=0) == Observation("hello")
    assert await environment.step("1") == StepResult(Observation(""), reward=1.0, done=True)
    message = r"task b: no field answer, which test_registry.py:\d+: is_echo takes"
    with pytest.raises(ConfigError, match=message):
        environments.check_tasks([Task("b", "hello", "echo", "easy")])


def test_every_instance_is_a_new_one():
    environments = registry(f"{__name__}:Echo")

    assert environments.create("echo") is not environments.create("echo")


@pytest.mark.parametrize(
    ("dotted", "kwargs", "message"),
    [
        ("Echo", {}, "not of the form package.module:Class"),
        ("module:", {}, "not of the form package.module:Class"),
        ("rl_agent.no_such_module:Echo", {}, "cannot import rl_agent.no_such_module: ModuleNotFoundError"),
        (f"{__name__}:Missing", {}, f"{__name__} has no Missing"),
        (f"{__name__}:PLAY", {}, "neither a class nor a function"),
        (
            f"{__name__}:registry",
            {},
            r"test_registry.py:\d+: registry has neither a parameter `completion` nor",
        ),
        (f"{__name__}:is_echo", {"prefix": ""}, "does not take these env_config.kwargs: .*prefix"),
        (f"{__name__}:Mute", {}, "not an Environment; it lacks async def step, async def close"),
        ("rl_agent.env.single_turn:SingleTurnEnvironment", {}, "abstract; it lacks check_task, request"),
        (f"{__name__}:Echo", {"suffix": 1}, "does not take these env_config.kwargs: .*suffix"),
    ],
)
def test_a_kind_that_cannot_be_an_environment_is_one_line_with_the_key(dotted, kwargs, message):
    with pytest.raises(ConfigError, match=message) as caught:
        registry(dotted, **kwargs).check(["echo"])

    assert str(caught.value).startswith(f"env_config.kinds.echo={dotted}: ")
    assert "\n" not in str(caught.value)


def test_a_module_that_fails_while_imported_is_a_config_error(tmp_path, monkeypatch):
    (tmp_path / "broken_environment.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match="cannot import broken_environment: ZeroDivisionError"):
        registry("broken_environment:Echo").create("echo")


def test_an_unknown_kind_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"no environment 'chess'; there are echo"):
        registry(f"{__name__}:Echo").check({"chess"})


def test_a_task_its_environment_cannot_run_is_found_before_the_run():
    environments = registry(f"{__name__}:Echo")
    environments.check_tasks([Task("a", "?", "echo", "easy", answer="1")])

    with pytest.raises(ConfigError, match="task b: no answer; give it one"):
        environments.check_tasks([Task("b", "?", "echo", "easy")])


class Calculator(Echo):
    def __init__(self, *, prefix: str = "", names: tuple[str, ...] = ()) -> None:
        super().__init__(prefix=prefix)

    @staticmethod
    def tools(task: Task, *, names=("add",)):
        return [{"type": "function", "function": {"name": name, "parameters": {}}} for name in names]


class LateCalculator(Echo):
    @classmethod
    async def tools(cls, task: Task):
        await asyncio.sleep(0)
        return Calculator.tools(task)


CALCULATE = Task("t", "1+1=", "echo", "easy", answer="2")


@pytest.mark.parametrize("name", ["Calculator", "LateCalculator"])
async def test_an_environment_names_its_tools_at_once_or_later(name):
    async with registry(f"{__name__}:{name}") as environments:
        assert [tool["function"]["name"] for tool in await environments.tools_of(CALCULATE)] == ["add"]


async def test_tools_are_made_with_the_kwargs_that_they_take():
    env = registry(f"{__name__}:Calculator", names=["add", "sub"], prefix="> ")

    assert [tool["function"]["name"] for tool in await env.tools_of(CALCULATE)] == ["add", "sub"]


@pytest.mark.parametrize(
    ("name", "kwargs", "problem"),
    [
        ("Echo", {}, "the environment 'echo' has no tools; use text for its tasks"),
        ("Calculator", {"names": []}, "gives tools that cannot be used: no list of functions"),
        ("Calculator", {"names": ["add", "add"]}, "two functions are named 'add'"),
    ],
)
def test_tools_that_cannot_be_shown_are_refused_before_a_run(name, kwargs, problem):
    with pytest.raises(ConfigError, match=problem):
        registry(f"{__name__}:{name}", **kwargs).check_tools([CALCULATE])


class Picky(Echo):
    @staticmethod
    def check_settings(*, prefix: str = "") -> None:
        if prefix == "!":
            raise ValueError("prefix is '!'; use words")

    @staticmethod
    def check_task(task: Task, kwargs: dict) -> None:
        if kwargs["prefix"] in task.prompt:
            raise ValueError("the prompt holds the prefix")


def test_settings_are_checked_by_the_class_before_a_run():
    registry(f"{__name__}:Picky", prefix=">").check(["echo"])
    with pytest.raises(ConfigError) as raised:
        registry(f"{__name__}:Picky", prefix="!").check(["echo"])
    assert str(raised.value) == "env_config.kwargs.echo: prefix is '!'; use words"


def test_a_task_is_checked_with_the_settings_where_the_class_takes_them():
    environments = registry(f"{__name__}:Picky", prefix=">")
    environments.check_tasks([Task("a", "hello", "echo", "easy")])
    with pytest.raises(ConfigError, match="task a: the prompt holds the prefix"):
        environments.check_tasks([Task("a", "> hello", "echo", "easy")])


class Asking:
    """Asks the model itself; the kind `echo` scores it."""

    def __init__(self, *, by) -> None: ...
    async def run(self, task, seed, session): ...
    async def close(self): ...

    @staticmethod
    def scorer(*, by):
        if by is None:
            raise ValueError("by is None")
        return by


def asking_registry(**kwargs):
    kinds = {"asking": f"{__name__}:Asking", "echo": f"{__name__}:Echo"}
    config = EnvConfig.model_construct(kinds=kinds, module_folders=(), kwargs={"asking": kwargs})
    return EnvironmentRegistry(config)


@pytest.mark.parametrize(
    ("by", "reason"),
    [
        ("gone", "no environment 'gone'; there are asking, echo"),
        (None, "env_config.kwargs.asking: by is None"),
    ],
)
def test_the_scorer_of_a_kind_is_checked_with_it(by, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        asking_registry(by=by).check(["asking"])


def test_a_task_is_checked_by_its_scorer_too():
    task = Task("t", "hello", "asking", "easy")
    with pytest.raises(ConfigError, match="task t: no answer; give it one"):
        asking_registry(by="echo").check_tasks([task])
