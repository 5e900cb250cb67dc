"""One episode's exchange with the engine, as tokens.

Text goes in as token ids and the context only ever grows at its end. Images can only be tokenised by the
server: from the first image on the whole conversation is sent as messages each time, the server says which
tokens it made of them, and the turns are marked `context_reset`.
"""

import secrets
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_agent.agent.chat import ChatTokenizer, tool_message
from rl_agent.agent.parse import parse_action
from rl_agent.agent.template import Message
from rl_agent.agent.tool_calls import ParsedAction, Toolbox
from rl_agent.agent.tool_formats import ToolFormat
from rl_agent.engine.client import EngineClient
from rl_agent.engine.wire import Sampling
from rl_agent.errors import EnvironmentFailure
from rl_agent.off_loop import off_loop
from rl_agent.rollout.collector.lengths import ResponseLengths
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.types import Generation, Observation

_MAX_SEED = 2**63
_AS_TEXT = ParsedAction("")


@dataclass(frozen=True, slots=True)
class Policy:
    """The model that acts, and how it is sampled; shared by all episodes of a rollout."""

    engine: EngineClient
    gate: EngineGate
    chat: ChatTokenizer
    sampling: Sampling
    """Its seed is replaced by one of the episode and the turn."""
    system_prompt: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    lengths: ResponseLengths | None = None
    """Learned and told to the engine, if it is a pool."""
    keeps_version: bool = False
    """All turns of an episode are to be of one weight version, as far as the pool can do that."""
    tool_format: ToolFormat | None = None
    """How the model writes tool calls; None where actions are text."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request to the engine and its response; `types.Step` names the fields."""

    prompt_token_ids: tuple[int, ...]
    generation: Generation
    action: str
    context_reset: bool
    parsed: ParsedAction = _AS_TEXT
    """What the response does; `action` is a part of it."""


class Conversation:
    """The context of one episode. A turn that raises leaves it as it was before."""

    def __init__(
        self,
        policy: Policy,
        *,
        seed: int,
        name: str,
        task_id: str,
        is_single_turn: bool = False,
        toolbox: Toolbox | None = None,
    ) -> None:
        self._policy = policy
        self._seed = seed
        self._name = name
        self._task_id = task_id
        self._toolbox = toolbox
        self._tools = toolbox.schemas if toolbox else ()
        self._episode = secrets.token_hex(8) if policy.keeps_version and not is_single_turn else ""
        self._token_ids: list[int] = []
        self._turns: list[tuple[Observation, Turn]] = []

    async def respond(self, observation: Observation) -> Turn:
        """Show an observation, draw a response. Raises what `EngineClient.generate` raises."""
        is_visual = bool(observation.images) or any(seen.images for seen, _ in self._turns)
        turn = await (self._respond_visually(observation) if is_visual else self._respond(observation))
        if self._policy.lengths is not None:
            self._policy.lengths.add(self._task_id, len(self._turns), len(turn.generation.token_ids))
        self._turns.append((observation, turn))
        return turn

    async def end(self) -> None:
        """No turn will follow."""
        if self._episode:
            await self._policy.engine.end_episode(self._episode)

    async def _respond(self, observation: Observation) -> Turn:
        policy = self._policy
        size = len(observation.text)
        if self._turns:
            last = self._turns[-1][1]
            prompt = await off_loop(
                size,
                policy.chat.extend,
                last.generation.token_ids,
                observation,
                is_of_tool=last.parsed.is_call,
            )
        else:
            prompt = await off_loop(size, policy.chat.start, policy.system_prompt, observation, self._tools)
        context = self._token_ids + prompt
        async with self._place() as queue_s:
            generation = await policy.engine.generate(
                context,
                self._sampling(),
                request_id=self._request_id(),
                decode=policy.chat.decode_after,
            )
        context.extend(generation.token_ids)
        self._token_ids = context
        return await self._turn(tuple(prompt), generation, queue_s, context_reset=False)

    async def _respond_visually(self, observation: Observation) -> Turn:
        policy = self._policy
        for seen in (*(seen for seen, _ in self._turns), observation):
            if (token := policy.chat.control_token_in(seen.text)) is not None:
                raise EnvironmentFailure(
                    f"{self._task_id}: it shows {token!r}, which the server would read as a control"
                    " token beside images; let the environment write it differently"
                )
        messages = self._messages(observation)
        async with self._place() as queue_s:
            prompt, generation = await policy.engine.generate_chat(
                messages,
                self._sampling(),
                request_id=self._request_id(),
                chat_template_kwargs=policy.chat_template_kwargs,
                decode=policy.chat.decode_response,
                tools=self._tools,
            )
        return await self._turn(prompt, generation, queue_s, context_reset=True)

    def _messages(self, observation: Observation) -> list[Message]:
        system_prompt = self._policy.system_prompt
        messages: list[Message] = [{"role": "system", "content": system_prompt}] if system_prompt else []
        is_of_tool = False
        for seen, turn in self._turns:
            messages.append(_shown(seen, is_of_tool=is_of_tool))
            messages.append({"role": "assistant", "content": turn.generation.text})
            is_of_tool = turn.parsed.is_call
        return [*messages, _shown(observation, is_of_tool=is_of_tool)]

    async def _turn(
        self, prompt: tuple[int, ...], generation: Generation, queue_s: float, *, context_reset: bool
    ) -> Turn:
        generation = replace(generation, queue_s=queue_s)
        read = self._toolbox.read if self._toolbox else _as_text
        parsed = await off_loop(len(generation.text), read, generation.text)
        return Turn(prompt, generation, parsed.action, context_reset, parsed)

    def _place(self) -> AbstractAsyncContextManager[float]:
        """At the engine: at once where that waits for this turn, for others may wait for the engine."""
        is_waited_for = bool(self._episode and self._turns)
        return self._policy.gate.at_once() if is_waited_for else self._policy.gate

    def _sampling(self) -> Sampling:
        # Turns and episodes must not share random numbers: neighbouring seeds are spread apart.
        seed = (self._seed * 1_000_003 + len(self._turns)) % _MAX_SEED
        lengths = self._policy.lengths
        if lengths is None:  # only a pool is told more
            return replace(self._policy.sampling, seed=seed)
        expected = lengths.expected(self._task_id, len(self._turns))
        return replace(
            self._policy.sampling,
            seed=seed,
            expected_tokens=expected,
            group=self._task_id[:200],
            episode=self._episode,
        )

    def _request_id(self) -> str:
        return f"{self._name}:{len(self._turns)}"


def _as_text(response: str) -> ParsedAction:
    return ParsedAction(parse_action(response))


def _shown(observation: Observation, *, is_of_tool: bool) -> Message:
    content = _content(observation)
    return tool_message(content) if is_of_tool else {"role": "user", "content": content}


def _content(observation: Observation) -> str | list[dict[str, Any]]:
    if not observation.images:
        return observation.text
    images = [{"type": "image_url", "image_url": {"url": Path(path).as_uri()}} for path in observation.images]
    return [*images, {"type": "text", "text": observation.text}]
