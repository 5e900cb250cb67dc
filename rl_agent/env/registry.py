"""Makes instances of environments from their names in the configuration: of classes and reward functions."""

import asyncio
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

from rl_agent.chat.tool_calls import check_schemas
from rl_agent.chat.tool_formats import Schema
from rl_agent.config.overrides.user_class import load_class
from rl_agent.env.protocol import Environment
from rl_agent.env.reward_function import environment_of
from rl_agent.errors import ConfigError, EnvironmentFailure, TaskError
from rl_agent.types import Task

_METHODS = ("reset", "step", "close")
_METHODS_OF_ASKING = ("run", "close")
_TOOLS_TIMEOUT_S = 60.0
"""A server of tools has this long to start and to list its tools."""


class KindsConfig(Protocol):
    """The part of `env_config` that is needed to make an environment."""

    @property
    def kinds(self) -> dict[str, str]: ...

    @property
    def module_folders(self) -> Sequence[Path]: ...

    @property
    def kwargs(self) -> dict[str, dict[str, Any]]: ...


class EnvironmentRegistry:
    """Imports the classes and functions of `env_config.kinds` when they are first needed.

    A caller that steps instances keeps the registry open with `async with` until the last one is closed; a
    registry that only checks needs no closing.
    """

    def __init__(self, env_config: KindsConfig, own: Mapping[str, type[Environment]] | None = None) -> None:
        """`own` are classes of this process, which no other could import; `kinds` names them, too."""
        self._env_config = env_config
        self._classes: dict[str, type[Environment]] = dict(own or {})
        self._fitting = set[str]()
        """Kinds whose class takes their `kwargs`; asked once, for it takes longer than an instance."""

    def create(self, kind: str) -> Environment:
        """Make a new instance. Raises ConfigError as `check`."""
        kwargs = self._env_config.kwargs.get(kind, {})
        if kind not in self._fitting:
            self._check_kwargs(kind, kwargs)
            self._fitting.add(kind)
        return self._class_of(kind)(**kwargs)

    def is_cooperative(self, kind: str) -> bool:
        """Return whether a kind says that it never blocks an event loop nor ends its process."""
        return bool(getattr(self._class_of(kind), "is_cooperative", False))

    def asks(self, kind: str) -> bool:
        """Return whether environments of a kind ask the model themselves (`env.agent.session`)."""
        return inspect.iscoroutinefunction(getattr(self._class_of(kind), "run", None))

    def scorer_of(self, kind: str) -> str:
        """Return the kind that scores episodes of one that asks the model itself; empty if none does."""
        scorer = getattr(self._class_of(kind), "scorer", None)
        return str(scorer(**self._env_config.kwargs.get(kind, {}))) if scorer is not None else ""

    def check(self, kinds: Iterable[str]) -> None:
        """Raises ConfigError for the first kind that cannot be used on this machine; makes no instance."""
        for kind in sorted(set(kinds)):
            self._check_kwargs(kind, self._env_config.kwargs.get(kind, {}))
            check_settings = getattr(self._class_of(kind), "check_settings", None)
            try:
                if check_settings is not None:
                    check_settings(**self._env_config.kwargs.get(kind, {}))
                scorer = self.scorer_of(kind)
            except (TypeError, ValueError) as error:
                reason = str(error).rpartition("() ")[2]  # without the function's name
                raise ConfigError(f"env_config.kwargs.{kind}: {reason}") from None
            if scorer:
                self.check({scorer})

    def check_tasks(self, tasks: Iterable[Task]) -> None:
        """Raises TaskError for the first task that its environment cannot run."""
        for task in tasks:
            if scorer := self.scorer_of(task.env):
                self.check_tasks([replace(task, env=scorer)])
            check_task = getattr(self._class_of(task.env), "check_task", None)
            if check_task is None:
                continue
            kwargs = self._env_config.kwargs.get(task.env, {})
            try:
                check_task(
                    *((task, kwargs) if len(inspect.signature(check_task).parameters) > 1 else (task,))
                )
            except ValueError as error:
                raise TaskError(f"task {task.task_id}: {error}", task.task_id) from None

    async def tools_of(self, task: Task) -> tuple[Schema, ...]:
        """Return the functions that the task's agent may call. Raises ConfigError if there are none."""
        environment, kwargs = self._class_of(task.env), self._env_config.kwargs.get(task.env, {})
        key = f"policy_config.action_format=tool_calls: the environment {task.env!r}"
        tools = getattr(environment, "tools", None)
        if tools is None:
            raise ConfigError(f"{key} has no tools; use text for its tasks")
        taken = inspect.signature(tools).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
        schemas = tools(task, **{name: value for name, value in kwargs.items() if takes_all or name in taken})
        try:
            return check_schemas(await schemas if inspect.isawaitable(schemas) else schemas)
        except ValueError as error:
            raise ConfigError(f"{key} gives tools that cannot be used: {error}") from None

    def check_tools(self, tasks: Iterable[Task]) -> None:
        """Raises ConfigError for the first kind of environment whose tools cannot be shown to a model."""
        asyncio.run(self._check_tools({task.env: task for task in tasks}.values()))

    async def _check_tools(self, tasks: Iterable[Task]) -> None:
        async with self:
            for task in tasks:
                try:
                    async with asyncio.timeout(_TOOLS_TIMEOUT_S):
                        await self.tools_of(task)
                except TimeoutError:
                    raise ConfigError(
                        f"env_config.kwargs.{task.env}: no list of tools within {_TOOLS_TIMEOUT_S:g} s"
                    ) from None
                except EnvironmentFailure as error:
                    raise ConfigError(
                        f"env_config.kwargs.{task.env}: its tools cannot be listed: {error}"
                    ) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close what instances share."""
        for environment in self._classes.values():
            close_shared = getattr(environment, "close_shared", None)
            if close_shared is not None:
                await close_shared()

    def _class_of(self, kind: str) -> type[Environment]:
        if kind not in self._classes:
            self._classes[kind] = self._import(kind)
        return self._classes[kind]

    def _import(self, kind: str) -> type[Environment]:
        if kind not in self._env_config.kinds:
            names = ", ".join(sorted(self._env_config.kinds))
            raise ConfigError(f"env_config.kinds: no environment {kind!r}; there are {names}")
        dotted = self._env_config.kinds[kind]
        key = f"env_config.kinds.{kind}={dotted}"
        loaded = load_class(key, dotted, self._env_config.module_folders)
        if inspect.isfunction(loaded):
            try:
                return environment_of(loaded)
            except ValueError as error:
                raise ConfigError(f"{key}: {error}") from None
        if problem := problem_with(loaded):
            raise ConfigError(f"{key}: {problem}")
        environment_class: type[Environment] = loaded
        return environment_class

    def _check_kwargs(self, kind: str, kwargs: dict[str, Any]) -> None:
        try:
            inspect.signature(self._class_of(kind)).bind(**kwargs)
        except TypeError as error:
            key = f"env_config.kinds.{kind}={self._env_config.kinds[kind]}"
            raise ConfigError(f"{key}: does not take these env_config.kwargs: {error}") from None


def problem_with(candidate: object) -> str | None:
    """Return why something is no class of environments; None if it is one."""
    if not inspect.isclass(candidate):
        return "neither a class nor a function"
    methods = _METHODS_OF_ASKING if hasattr(candidate, "run") else _METHODS
    missing = [name for name in methods if not inspect.iscoroutinefunction(getattr(candidate, name, None))]
    if missing:
        return f"not an Environment; it lacks {', '.join(f'async def {name}' for name in missing)}"
    abstract = sorted(getattr(candidate, "__abstractmethods__", ()))
    if abstract:
        return f"abstract; it lacks {', '.join(abstract)}"
    return None
