"""The model that acts, and how the responses of one episode are drawn from it."""

import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.image_tokens import ImageTokens
from rl_agent.chat.context.window import ContextLimits
from rl_agent.chat.text_chat import TextChat
from rl_agent.chat.tool_formats import ToolFormat
from rl_agent.engine.client import EngineClient
from rl_agent.engine.packed import PromptImage
from rl_agent.engine.wire import Sampling
from rl_agent.rollout.collector.lengths import ResponseLengths
from rl_agent.rollout.collector.limit import EngineGate
from rl_agent.types import Generation

MAX_SEED = 2**63


@dataclass(frozen=True, slots=True)
class Policy:
    """The model that acts, and how it is sampled; shared by all episodes of a rollout."""

    engine: EngineClient
    gate: EngineGate
    chat: ChatTokenizer | TextChat
    sampling: Sampling
    """Its seed is replaced by one of the episode and the turn."""
    system_prompt: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    lengths: ResponseLengths | None = None
    """Learned and told to the engine, if it is a pool."""
    keeps_version: bool = False
    """All turns of an episode are to be of one weight version, as far as the pool can do that."""
    limits: ContextLimits = field(default_factory=ContextLimits)
    """The policy that chooses what of an episode is shown, and the limits that it must fit."""
    image_tokens: ImageTokens = field(default_factory=ImageTokens)
    tool_format: ToolFormat | None = None
    """The way the model writes tool calls; None where actions are text."""


class EpisodeDraws:
    """Draws the responses of one attempt at an episode: seeds, names of requests, places at the engine."""

    def __init__(
        self, policy: Policy, *, seed: int, name: str, task_id: str, is_single_turn: bool = False
    ) -> None:
        self.policy = policy
        self.task_id = task_id
        self._seed = seed
        self._name = name
        self._episode = secrets.token_hex(8) if policy.keeps_version and not is_single_turn else ""

    def sampling(self, turn: int) -> Sampling:
        """Return how the response of a turn, counted from 0, is sampled."""
        # Turns and episodes must not share random numbers: neighbouring seeds are spread apart.
        seed = (self._seed * 1_000_003 + turn) % MAX_SEED
        lengths = self.policy.lengths
        if lengths is None:  # only a pool is told more
            return replace(self.policy.sampling, seed=seed)
        expected = lengths.expected(self.task_id, turn)
        return replace(
            self.policy.sampling,
            seed=seed,
            expected_tokens=expected,
            group=self.task_id[:200],
            episode=self._episode,
        )

    def request_id(self, turn: int) -> str:
        return f"{self._name}:{turn}"

    def place(self, turn: int) -> AbstractAsyncContextManager[float]:
        """Return a place at the engine: at once where it waits for this turn, for others may wait for the
        engine."""
        return self.policy.gate.at_once() if self._episode and turn else self.policy.gate

    async def response(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        request_id: str,
        turn: int,
        images: Sequence[PromptImage] = (),
    ) -> tuple[Sequence[int], Generation]:
        """Draw one response to a prompt of tokens, of which one stands for each image.

        Also returns the prompt as the model saw it. Raises what the engine's client raises.
        """
        engine, decode = self.policy.engine, self.policy.chat.decode_after
        async with self.place(turn) as queue_s:
            if images:
                seen, generation = await engine.generate_with_images(
                    token_ids, images, sampling, request_id=request_id, decode=decode
                )
            else:
                seen = tuple(token_ids)
                generation = await engine.generate(token_ids, sampling, request_id=request_id, decode=decode)
        return seen, replace(generation, queue_s=queue_s)

    async def end(self) -> None:
        """No turn will follow."""
        if self._episode:
            await self.policy.engine.end_episode(self._episode)
