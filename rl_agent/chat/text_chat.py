"""Stands in for the tokenizer of a model whose server renders the messages and answers text alone."""

from collections.abc import Sequence

from rl_agent.chat.parse import Thought
from rl_agent.chat.template import Message
from rl_agent.chat.tool_formats import Schema


class TextChat:
    """A conversation as messages; nothing in it is a token."""

    vocab_size = None
    stop_token_ids: tuple[int, ...] = ()
    folder = None

    def plain(self, text: str, is_of_tool: bool = False) -> str:
        """Return the text as it is: which tokens control the model is not known here."""
        return text

    def opened_thought(self, prompt: Sequence[int]) -> Thought | None:
        """Return None: a server that answers text splits thoughts from it."""
        return None

    def encode_messages(self, messages: list[Message], tools: Sequence[Schema] = ()) -> None:
        """Return None: there are no tokens."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return nothing, for no token."""
        return ""

    def decode_response(self, token_ids: Sequence[int]) -> str:
        """Return nothing: the server says what the text is."""
        return ""

    def decode_after(self, prompt: Sequence[int], response: Sequence[int]) -> str:
        """Return nothing, for no token."""
        return ""
