"""Defines an environment that asks the model itself, and what it asks with.

    run(task, seed, session) ─► session.ask(question) ─► answer ─► … ─► result
                                       │ each is a step of the episode: the tokens as the engine sampled them

An ordinary environment answers the model; here the model answers, as often as the environment asks, and also
several questions at once. `rollout.collector.agent_chats` finds out which answers a question builds on.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

from rl_agent.chat.reply import Reply
from rl_agent.chat.template import Message
from rl_agent.chat.tool_formats import Schema
from rl_agent.types import StepResult, Task


@dataclass(frozen=True, slots=True)
class Question:
    """One request for a chat completion, as far as it is the program's to decide."""

    messages: tuple[Message, ...]
    """The messages as `chat.client_messages` reads them."""
    tools: tuple[Schema, ...] = ()
    reads_calls: bool = True
    """False: a tool call in the response is text."""
    max_tokens: int | None = None
    """Limits the response where it is less than the run's own limit."""
    stop: tuple[str, ...] = ()
    """Texts that end the response; they are sampled, and not shown."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the images of the messages, by the digests that these name."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The response to a question."""

    reply: Reply
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    prompt_tokens: int
    response_tokens: int


class QuestionRefused(Exception):
    """A question cannot be answered, whoever asks it; the message says why, in one line."""


class LimitReached(QuestionRefused):
    """A limit of the episode is reached: its number of steps, or the length of the context."""


class AgentSession(Protocol):
    """One attempt at an episode, as its environment sees it."""

    model: str
    """The name of the served model."""

    async def ask(self, question: Question) -> ModelAnswer:
        """Draw a response. Raises QuestionRefused; any other error ends the episode."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Let the deadline for the next question stand still while the block runs."""
        ...

    def log(self, text: str) -> None:
        """Write to the run's log of agents."""
        ...


class AskingEnvironment(Protocol):
    """An environment that has `run` in place of `reset` and `step`.

    Its class lives in the collector's process, which it must not block, and may have `scorer(**kwargs)`: the
    kind of environment of one turn that scores what `run` returns as its observation's text; empty if none.
    """

    async def run(self, task: Task, seed: int, session: AgentSession) -> StepResult:
        """Run an episode to its end. Cancelled at its deadline."""
        ...

    async def close(self) -> None:
        """Release all resources of the instance."""
        ...


def asks(environment: object) -> TypeGuard[AskingEnvironment]:
    """Return whether an environment asks the model itself; a protocol's `isinstance` takes long."""
    return hasattr(environment, "run")
