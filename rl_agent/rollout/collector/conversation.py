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

from rl_agent.agent.chat import ChatTokenizer
from rl_agent.agent.parse import parse_action
from rl_agent.agent.template import Message
from rl_agent.engine.client import EngineClient
from rl_agent.engine.wire import Sampling
from rl_agent.errors import EnvironmentFailure
from rl_agent.off_loop import off_loop
from rl_agent.rollout.collector.lengths import ResponseLengths
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.types import Generation, Observation

_MAX_SEED = 2**63


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


@dataclass(frozen=True, slots=True)
class Turn:
    """One request to the engine and its response; `types.Step` names the fields."""

    prompt_token_ids: tuple[int, ...]
    generation: Generation
    action: str
    context_reset: bool


class Conversation:
    """The context of one episode. A turn that raises leaves it as it was before."""

    def __init__(
        self, policy: Policy, *, seed: int, name: str, task_id: str, is_single_turn: bool = False
    ) -> None:
        self._policy = policy
        self._seed = seed
        self._name = name
        self._task_id = task_id
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
            response = self._turns[-1][1].generation.token_ids
            prompt = await off_loop(size, policy.chat.extend, response, observation)
        else:
            prompt = await off_loop(size, policy.chat.start, policy.system_prompt, observation)
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
        return await _turn(tuple(prompt), generation, queue_s, context_reset=False)

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
            )
        return await _turn(prompt, generation, queue_s, context_reset=True)

    def _messages(self, observation: Observation) -> list[Message]:
        system_prompt = self._policy.system_prompt
        messages: list[Message] = [{"role": "system", "content": system_prompt}] if system_prompt else []
        for seen, turn in self._turns:
            messages.append({"role": "user", "content": _content(seen)})
            messages.append({"role": "assistant", "content": turn.generation.text})
        return [*messages, {"role": "user", "content": _content(observation)}]

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


async def _turn(
    prompt: tuple[int, ...], generation: Generation, queue_s: float, *, context_reset: bool
) -> Turn:
    generation = replace(generation, queue_s=queue_s)
    action = await off_loop(len(generation.text), parse_action, generation.text)
    return Turn(prompt, generation, action, context_reset)


def _content(observation: Observation) -> str | list[dict[str, Any]]:
    if not observation.images:
        return observation.text
    images = [{"type": "image_url", "image_url": {"url": Path(path).as_uri()}} for path in observation.images]
    return [*images, {"type": "text", "text": observation.text}]
