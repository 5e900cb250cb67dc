"""Builds conversations as tokens: what was sent and what was sampled, in order, never tokenised again.

    prompt  = start(system, first observation)
    context = prompt + response + extend(response, observation) + response + extend(…) + …

`extend` finds what the chat template puts between a response and the next one: it renders a conversation
whose response is a marker, and takes the text after it. So a template that renders earlier responses
differently (Qwen3 drops their thoughts) cannot change a recorded token.

An observation may contain the text of a control token, such as `<|im_end|>` in a task or on a web page. It
reaches the model as those characters and never as the token, so it can neither end nor begin a turn.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from rl_agent.chat.parse import Thought, opened_thought
from rl_agent.chat.template import Message, compile_template, render
from rl_agent.chat.tokenizer_files import model_folder, read_tokenizer
from rl_agent.chat.tool_formats import Schema
from rl_agent.chat.turns import Turns
from rl_agent.engine.tokens import vocabulary_of
from rl_agent.errors import ConfigError
from rl_agent.types import Observation

_MARKER = "response-goes-here"
_PLACEHOLDER = "\uf8ff{}\ue0c7"
_PLACEHOLDERS = re.compile("\uf8ff([0-9]+)\ue0c7")
"""Private-use characters around the number of a control token; no text has them in this order."""
_LONGEST_CHARACTER = 4
"""Most tokens that one character can be divided into, one for each byte."""
_PROMPT_TAIL = 16
"""Tokens at the end of a prompt that can affect how its response is decoded."""
_LONGEST_MARK = 48
"""Tokens that the mark of a thought and the blanks after it may take; a mark may be no token of its own."""
_MARK = re.compile(r"<[^\s<>]+>|\[[^\s\[\]]+\]")
"""Tokens such as `<tool_response>`, which many tokenizers do not call special."""
_CALL_ID = "call00000"
"""Nine characters, as Mistral's templates want it."""


def tool_message(content: str | list[dict[str, Any]]) -> Message:
    """Return what a tool answers as a message."""
    return {"role": "tool", "content": content, "name": "tool", "tool_call_id": _CALL_ID}


def content_of(
    before: str, observation: Observation, image_part: Callable[[str], dict[str, Any]]
) -> str | list[dict[str, Any]]:
    """Return an observation as the content of a message: its images before its text."""
    if not observation.images:
        return "\n\n".join(filter(None, (before, observation.text)))
    opened = [_text(f"{before}\n\n")] if before else []
    return [*opened, *map(image_part, observation.images), _text(observation.text)]


def with_texts(message: Message, change: Callable[[str], str]) -> Message:
    """Return a message with its texts changed."""
    content = message["content"]
    if isinstance(content, str):
        return message | {"content": change(content)}
    parts = [part | {"text": change(part["text"])} if part["type"] == "text" else part for part in content]
    return message | {"content": parts}


def _texts_of(message: Message) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [p["text"] for p in content if p["type"] == "text"]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(_: str) -> dict[str, Any]:
    """Return an image as a chat template renders it."""
    return {"type": "image"}


class ChatTokenizer:
    """The tokenizer and chat template of a model. Immutable; calls take time linear in the text or tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: str,
        eos_tokens: Mapping[int, str],
        variables: Mapping[str, Any],
        *,
        origin: str = "model",
        vocab_size: int | None = None,
        folder: Path | None = None,
    ) -> None:
        """`vocab_size` is the model's; its embedding may have more rows than the tokenizer has tokens."""
        self.vocab_size = vocab_size
        self.folder = folder
        """The model's; None for a tokenizer that was not read from one."""
        self._tokenizer = tokenizer
        self._template = compile_template(chat_template, origin)
        self.shows_time = "strftime_now" in chat_template
        """A clock elsewhere may render other texts."""
        self._variables = dict(variables)
        self.turns = Turns.of(
            lambda messages, begins: render(
                self._template, messages, self._variables, add_generation_prompt=begins
            )
        )
        added = tokenizer.get_added_tokens_decoder().values()
        self._eos_tokens = {token_id: text for token_id, text in eos_tokens.items() if text}
        ends = set(self._eos_tokens.values())
        words = {token.content for token in added if token.special or token.content in ends}
        marks = {token.content for token in added if _MARK.fullmatch(token.content)}
        self._markers = _any_of(words | marks | ends)
        self._last_marks = self._leading_marks(self.turns.end)
        self.turn_ends = (*self._last_marks, *self._leading_marks(self.turns.next))
        """The tokens that the template puts after a response."""
        self.stop_token_ids: tuple[int, ...] = ()
        """A token that ends turns, of a model whose eos tokens end none: engines have to be told of it."""
        if self.turn_ends and ends.isdisjoint(self.turn_ends):
            self.stop_token_ids = (tokenizer.token_to_id(self.turn_ends[0]),)
            self._eos_tokens[self.stop_token_ids[0]] = self.turn_ends[0]
        self._control = _any_of(words | {self._eos_tokens[token_id] for token_id in self.stop_token_ids})
        self.eos_token_ids = frozenset((*eos_tokens, *self.stop_token_ids))

    @classmethod
    def load(cls, model_path: str, chat_template_kwargs: Mapping[str, Any]) -> "ChatTokenizer":
        """Read a model folder, or a hub name through the hub's cache. Raises ConfigError."""
        folder = model_folder(model_path)
        read = read_tokenizer(folder)
        return cls(
            read.tokenizer,
            read.chat_template,
            read.eos_tokens,
            read.named_tokens | dict(chat_template_kwargs),
            origin=str(folder),
            vocab_size=vocabulary_of(folder),
            folder=folder,
        )

    def start(
        self,
        system_prompt: str | None,
        observation: Observation,
        tools: Sequence[Schema] = (),
        *,
        opening: str = "",
    ) -> list[int]:
        """Return the tokens of the first prompt, up to where the response begins; each image is one token.

        `opening` is shown before the observation. `tools` are shown as the template shows them; they may come
        from a server, as observations do. Raises ConfigError for images that the template does not take.
        """
        messages: list[Message] = [{"role": "system", "content": system_prompt}] if system_prompt else []
        content = content_of(opening, observation, _image)
        shown, control = self._without_control_tokens([{"role": "user", "content": content}])
        rendered = self.render([*messages, *shown], self._harmless(tools), add_generation_prompt=True)
        return self._encode(rendered, control)

    def start_with(self, messages: Sequence[Message], tools: Sequence[Schema] = ()) -> list[int]:
        """Return the tokens of a first prompt whose messages a program wrote.

        Raises ConfigError if the template refuses them.
        """
        shown, control = self._without_control_tokens(messages)
        return self._encode(self.render(shown, self._harmless(tools), add_generation_prompt=True), control)

    def extend(
        self, response: Sequence[int], observation: Observation, *, is_of_tool: bool = False
    ) -> list[int]:
        """Return the tokens between a response and the next one: the end of its turn, and the next prompt.

        What a tool answers has the role of a tool, and none of its text becomes one of the model's markers.
        """
        content = content_of("", observation, _image)
        return self.extend_with(
            response, [tool_message(content) if is_of_tool else {"role": "user", "content": content}]
        )

    def extend_with(self, response: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Return the tokens between a response and the next one, with these messages between them.

        Raises ConfigError if the template refuses them, or hides responses.
        """
        shown, control = self._without_control_tokens(messages)
        marker = _MARKER
        while any(marker in text for message in messages for text in _texts_of(message)):
            marker += "-"
        spoken: list[Message] = [{"role": "user", "content": "…"}, {"role": "assistant", "content": marker}]
        rendered = self.render([*spoken, *shown], (), add_generation_prompt=True)
        _, shown_marker, after = rendered.partition(marker)
        if not shown_marker:
            raise ConfigError("the chat template hides responses; multi-turn tasks need them")
        return self._encode(self._after_end(response, after), control)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Schema], *, add_generation_prompt: bool
    ) -> str:
        """Render a conversation as the template does. Raises ConfigError if it refuses."""
        variables = self._variables | ({"tools": list(tools)} if tools else {})
        return render(self._template, list(messages), variables, add_generation_prompt=add_generation_prompt)

    def opened_thought(self, prompt: Sequence[int]) -> Thought | None:
        """Return the thought that the last tokens of a prompt begin; its response continues it."""
        return opened_thought(self.decode(prompt[-_LONGEST_MARK:]))

    def without_ending(self, text: str) -> str:
        """Return a rendered response up to the token that ends it."""
        for ending in self._eos_tokens.values():
            text = text.partition(ending)[0]
        return text

    def plain(self, text: str, is_of_tool: bool = False) -> str:
        """Return the text with each control token broken by a space, so that a server reads characters.

        In what a tool answers the model's markers are broken, too, as `extend` has it.
        """
        pattern = self._markers if is_of_tool else self._control
        return pattern.sub(_broken, text) if pattern is not None else text

    def encode_messages(self, messages: list[Message], tools: Sequence[Schema] = ()) -> list[int] | None:
        """Return the tokens of a prompt of messages, each image one; None if the template takes none."""
        try:
            rendered = self.render(messages, tools, add_generation_prompt=True)
        except ConfigError:  # a template that takes text alone adds a string and a list
            return None
        return self._encode(rendered)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode tokens, special ones included."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def decode_response(self, token_ids: Sequence[int]) -> str:
        """Decode a response without the token that ended it, as a server shows it."""
        ends = bool(token_ids) and token_ids[-1] in self.eos_token_ids
        return self.decode(token_ids[:-1] if ends else token_ids)

    def decode_after(self, prompt: Sequence[int], response: Sequence[int]) -> str:
        """Decode a response to this prompt as a server does, special tokens included.

        An unfinished last character is left out, as in vLLM's v1/engine/detokenizer.py. That decodes token by
        token, and shows the prompt too if it ends within a character. Decoding all tokens at once gives the
        same text if every character is complete, in a sixth of the time.
        """
        tail = list(prompt[-_PROMPT_TAIL:])
        if self.decode(tail).endswith("\ufffd"):
            tail = list(prompt)
        text: str | None = DecodeStream(ids=tail, skip_special_tokens=False).step(
            self._tokenizer, list(response)
        )
        if text and "\ufffd" not in text:
            return text
        return "".join(self._decode_piecewise(tail, response))

    def _decode_piecewise(self, prompt: list[int], response: Sequence[int]) -> Iterator[str]:
        """Decode token by token, or in longer pieces while no text comes: a try reads all since the last."""
        stream, silent, piece = DecodeStream(ids=prompt, skip_special_tokens=False), 0, list[int]()
        for left, token in zip(range(len(response) - 1, -1, -1), response, strict=True):
            piece.append(token)
            if len(piece) < silent // 8 and left >= _LONGEST_CHARACTER:
                continue
            try:
                text = stream.step(self._tokenizer, piece)
            except Exception as error:  # the library's own class of error has no name
                if not str(error).startswith("Invalid prefix encountered"):
                    raise
                stream = DecodeStream(skip_special_tokens=False)  # as vLLM goes on
                text = stream.step(self._tokenizer, piece)
            silent = 0 if text else silent + len(piece)
            piece = []
            if text:
                yield text

    def _leading_marks(self, text: str) -> dict[str, int]:
        """Return the tokens with which a text begins, blanks between them, and where each ends."""
        marks, at = dict[str, int](), 0
        while self._markers and (match := self._markers.match(text, at)):
            marks.setdefault(match[0], match.end())
            at = len(text) - len(text[match.end() :].lstrip())
        return marks

    def _after_end(self, response: Sequence[int], after: str) -> str:
        """Return the text after a response without what the response itself ended with.

        Templates may end a turn with two tokens, of which the model samples both, or the last turn with
        another token than those before it.
        """
        marks = self._leading_marks(after)
        if not response or not marks:
            return after
        last, first = self._tokenizer.id_to_token(response[-1]), next(iter(marks))
        is_end = last == first or (last in marks and response[-1] in self.eos_token_ids)
        if not is_end and last in self._last_marks:
            is_end, last = True, first
        return after[marks[last] :] if is_end else after

    def _without_control_tokens(self, messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
        """Replace each control token in contents by a placeholder; return the messages and these tokens.

        What a tool answers has none of the model's markers either.
        """
        control: list[str] = []

        def placeholder(match: re.Match[str]) -> str:
            control.append(match[0])
            return _PLACEHOLDER.format(len(control) - 1)

        def harmless(message: Message) -> Message:
            pattern = self._markers if message["role"] == "tool" else self._control
            shown = with_texts(message, partial(harmless_text, pattern))
            if "tool_calls" in message:
                shown["tool_calls"] = self._harmless(message["tool_calls"])
            return shown

        def harmless_text(pattern: re.Pattern[str] | None, text: str) -> str:
            text = _PLACEHOLDERS.sub("\ufffd", text)
            return pattern.sub(placeholder, text) if pattern is not None else text

        return [harmless(message) for message in messages], control

    def _harmless(self, values: Sequence[dict[str, Any]]) -> Any:
        """Return schemas, or calls, without control tokens, which no function needs."""
        if self._markers is None or not values:
            return list(values)
        text = json.dumps(list(values), ensure_ascii=False)
        return json.loads(self._markers.sub(_broken, text))

    def _encode(self, text: str, control: Sequence[str] = ()) -> list[int]:
        """Encode a rendered text, in which each placeholder stands for the text of a control token.

        A control token separates the text around it, so the other tokens do not change.
        """
        ids: list[int] = []
        for number, part in enumerate(_PLACEHOLDERS.split(text) if control else [text]):
            word = control[int(part)] if number % 2 else ""
            for piece in (word[:1], word[1:]) if word else (part,):  # neither part is the token
                ids += self._tokenizer.encode(piece, add_special_tokens=False).ids if piece else []
        return ids


def _any_of(words: Iterable[str]) -> re.Pattern[str] | None:
    """Return what finds the longest of these words."""
    longest_first = sorted(filter(None, words), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _broken(match: re.Match[str]) -> str:
    return f"{match[0][:1]} {match[0][1:]}"
