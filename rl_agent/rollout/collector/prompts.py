"""Builds the prompts that an episode's context policy allows, and finds the first that fits.

A prompt of text is its tokens. One with images is tokens, too, of which one stands for each image, and
messages for a server that takes no images beside tokens. Its length is known before it is sent where the
image processor is known or sizes like these were sent before (`chat.context.image_tokens`). A server that
tells no tokens is sent messages alone, whose length nobody knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.context.image_tokens import ImageTokens, Size
from rl_agent.chat.context.messages import countable, messages_of, tokens_of
from rl_agent.chat.context.window import ContextView, Round, images_of
from rl_agent.chat.template import Message
from rl_agent.chat.text_chat import TextChat
from rl_agent.chat.tool_formats import Schema
from rl_agent.engine.packed import PromptImage
from rl_agent.errors import ConfigError, PromptTooLong
from rl_agent.rollout.trajectories.images import digest_of, image_size
from rl_agent.system.off_loop import SMALL, off_loop
from rl_agent.types import Generation, Observation

_COMFORTABLE = 0.75
"""A prompt that has to be shortened fills at most this share, so that the next ones can grow for a while."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A view of the episode as it is sent."""

    view: ContextView
    images: tuple[str, ...]
    """Digests, in order."""
    token_ids: list[int]
    """One stands for each image; empty where the chat template does not say which."""
    files: tuple[PromptImage, ...] = ()
    """The images, in order."""
    messages: list[Message] = field(default_factory=list)
    """The messages of a prompt with images, or for a server that tells no tokens."""
    sizes: tuple[Size, ...] = ()
    length: int | None = None
    """The length in tokens; None where nobody knows how many an image takes."""


class PromptBuilder:
    """The rounds of one episode so far, and the prompts that can be made of them."""

    def __init__(
        self,
        chat: ChatTokenizer | TextChat,
        system_prompt: str | None,
        image_tokens: ImageTokens,
        task_id: str,
        tools: Sequence[Schema] = (),
    ) -> None:
        self.rounds: list[Round] = []
        self._chat = chat
        self._system_prompt = system_prompt
        self._image_tokens = image_tokens
        self._task_id = task_id
        self._tools = tools
        self._responses: list[tuple[int, ...]] = []
        self._sizes: dict[str, Size | None] = {}
        self._context: list[int] = []
        """Tokens of the last prompt as it was sent, and its response; empty where it was sent as messages."""
        self._seen: list[int] = []
        """The same as the model saw it."""
        self._view = ContextView()
        """The view that the last prompt showed."""

    def add(self, prompt: Prompt, token_ids: Sequence[int], generation: Generation, done: Round) -> None:
        """Take over a turn: its prompt, the tokens that the engine saw of it, and what became a round."""
        self.rounds.append(done)
        self._responses.append(generation.token_ids)
        self._view = prompt.view
        self._context = [*prompt.token_ids, *generation.token_ids] if prompt.token_ids else []
        self._seen = [*token_ids, *generation.token_ids]

    def added(self, prompt: Prompt, token_ids: Sequence[int]) -> tuple[Sequence[int], bool]:
        """Return the tokens that are new since the last response, and whether these are the whole context."""
        size = len(self._seen)
        if self._grows(prompt.view) and list(token_ids[:size]) == self._seen:
            return token_ids[size:], False
        return token_ids, True

    async def fitting(
        self,
        views: Sequence[ContextView],
        observation: Observation,
        longest: int | None,
        *,
        is_of_user: bool = False,
    ) -> tuple[Prompt, Sequence[ContextView]]:
        """Build the first of the views, which get shorter, that has at most `longest` tokens.

        Also returns the views after it. Raises PromptTooLong if not even the last one fits.
        """
        prompt = await self._built(views[0], observation, is_of_user)
        if longest is None or prompt.length is None or prompt.length <= longest:
            return prompt, views[1:]
        fits: dict[int, Prompt] = {}
        for limit in (int(longest * _COMFORTABLE), longest):
            low, high = 1, len(views)
            while low < high:
                middle = (low + high) // 2
                prompt = fits.get(middle) or await self._built(views[middle], observation, is_of_user)
                fits[middle] = prompt
                if prompt.length is None or prompt.length <= limit:
                    high = middle
                else:
                    low = middle + 1
            if low < len(views):
                return fits[low], views[low + 1 :]
        raise PromptTooLong(f"{prompt.length} tokens do not fit into the {longest} that a prompt may have")

    def _grows(self, view: ContextView) -> bool:
        """Return whether a prompt of this view only adds to the one before."""
        return not self.rounds or (view == self._view and bool(self._context))

    async def _built(self, view: ContextView, observation: Observation, is_of_user: bool) -> Prompt:
        paths = images_of(view, self.rounds, observation)
        shown = self.rounds[-1:] if self._grows(view) else self.rounds[view.whole_from :]
        size = sum(len(turn.observation.text) + len(turn.response) for turn in shown) + len(observation.text)
        if any(path not in self._sizes for path in paths):
            size += SMALL + 1  # files are read
        return await off_loop(size, self._build, view, observation, paths, is_of_user)

    def _build(
        self, view: ContextView, observation: Observation, paths: list[str], is_of_user: bool
    ) -> Prompt:
        token_ids = self._tokens(view, observation, is_of_user)
        if token_ids and not paths:
            return Prompt(view, (), token_ids, length=len(token_ids))
        return self._as_messages(view, observation, paths, token_ids, is_of_user)

    def _tokens(self, view: ContextView, observation: Observation, is_of_user: bool) -> list[int]:
        """Return the tokens of a prompt, each image one; none where the chat has none."""
        chat = self._chat
        if isinstance(chat, TextChat):
            return []
        try:
            if self._context and self._grows(view):
                is_of_tool = self.rounds[-1].is_call and not is_of_user
                return self._context + chat.extend(self._responses[-1], observation, is_of_tool=is_of_tool)
            return tokens_of(
                chat,
                self._system_prompt,
                view,
                self.rounds,
                self._responses,
                observation,
                self._tools,
                is_of_user=is_of_user,
            )
        except ConfigError:
            if not images_of(view, self.rounds, observation):
                raise
            return []  # the template takes text alone

    def _as_messages(
        self,
        view: ContextView,
        observation: Observation,
        paths: list[str],
        token_ids: list[int],
        is_of_user: bool,
    ) -> Prompt:
        """Build a prompt that a server may be sent as messages; also as tokens, if these have its images."""
        messages = messages_of(
            self._system_prompt,
            view,
            self.rounds,
            observation,
            image_part,
            self._chat.plain,
            is_of_user=is_of_user,
        )
        for path in paths:
            if path not in self._sizes:
                self._sizes[path] = image_size(path)
        sizes = tuple(size for path in paths if (size := self._sizes[path]) is not None)
        digests = tuple(digest_of(path) or path for path in paths)
        if not self._has_places(token_ids, paths):  # the model wrote a placeholder: it is shown as characters
            self._break_placeholders(messages)
            token_ids = self._chat.encode_messages(countable(messages), self._tools) or []
        if not self._has_places(token_ids, paths):
            token_ids = []
        pieces = self._image_tokens.total(sizes) if token_ids and len(sizes) == len(paths) else None
        length = None if pieces is None else len(token_ids) - len(paths) + pieces
        files = tuple(PromptImage(digest, Path(path)) for digest, path in zip(digests, paths, strict=True))
        return Prompt(view, digests, token_ids, files, messages, sizes, length)

    def _has_places(self, token_ids: Sequence[int], paths: Sequence[str]) -> bool:
        """Return whether there is one token for each image."""
        token = self._image_tokens.image_token
        return token is not None and token_ids.count(token) == len(paths)

    def _break_placeholders(self, messages: list[Message]) -> None:
        """Show a placeholder that the model wrote as characters: no image belongs to it."""
        if self._image_tokens.image_token is None:
            return
        placeholder = self._chat.decode([self._image_tokens.image_token])
        for message in messages:
            if placeholder and message["role"] == "assistant":
                broken = f"{placeholder[:1]} {placeholder[1:]}"
                message["content"] = message["content"].replace(placeholder, broken)


def image_part(path: str) -> dict[str, Any]:
    """Return the part of a message that shows an image; by its digest an engine knows it from before."""
    part = {"type": "image_url", "image_url": {"url": Path(path).as_uri()}}
    digest = digest_of(path)
    return part | {"uuid": digest} if digest is not None else part
