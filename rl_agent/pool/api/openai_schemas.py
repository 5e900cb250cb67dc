"""The fields of an OpenAI request that the pool reads; an engine judges every other one. Pure.

`docs/reference/openai-api.md` is made from these models. A field that is `null` is left out.
"""

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from rl_agent.engine.packed import ImageContent
from rl_agent.engine.wire import MAX_NAME
from rl_agent.pool.problem import problem
from rl_agent.pool.scheduler.reports import WeightVersion
from rl_agent.pool.scheduler.sampling import MAX_TOKENS, OF_THE_POOL, check_sampling
from rl_agent.pool.schemas import LONGEST_S, MAX_PROMPT_TOKENS, Name

Text = Annotated[str, Field(max_length=MAX_NAME)]
Length = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity"}
    | {"best_of", "return_token_offsets"}
)
"""Fields of OpenAI that engines ignore."""
RENDERED = frozenset(
    {"tools", "chat_template", "chat_template_kwargs", "documents", "reasoning_effort", "include_reasoning"}
    | {"continue_final_message", "add_special_tokens", "truncate_prompt_tokens", "truncation_side"}
    | {"return_prompt_text", "return_assistant_tokens_mask", "media_io_kwargs", "mm_processor_kwargs"}
)
"""Fields of a chat that an engine reads as it makes the prompt, or the message of the response."""
GRAMMARS = frozenset({"response_format", "structured_outputs"})
_NOTHING: tuple[Any, ...] = (False, [], {}, "", {"type": "text"})
"""Values that ask for nothing."""


Prompt = str | tuple[int, ...]


def _prompts(given: Any) -> tuple[Prompt, ...]:
    """Return the one prompt or those of a list. Raises ValueError."""
    is_list = isinstance(given, list) and bool(given) and isinstance(given[0], list | str)
    return tuple(map(_one_prompt, given if is_list else [given]))


def _one_prompt(prompt: Any) -> Prompt:
    """Return a text or token ids. Raises ValueError."""
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and len(prompt) > MAX_PROMPT_TOKENS:
        raise ValueError(f"{len(prompt)} tokens; at most {MAX_PROMPT_TOKENS} are taken")
    is_tokens = isinstance(prompt, list) and set(map(type, prompt)) == {int}
    if not is_tokens or min(prompt) < 0 or max(prompt) >= 2**31:
        raise ValueError("expected a text, a list of token ids, or a list of either")
    return tuple(prompt)


def _images(images: Any) -> tuple[ImageContent, ...]:
    """Return the images of a prompt. Raises ValueError."""
    try:
        return msgspec.convert(images, tuple[ImageContent, ...])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool = False


class OpenAiCall(BaseModel):
    """The fields of both routes."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", use_attribute_docstrings=True)
    elsewhere: ClassVar[frozenset[str]] = IGNORED
    """Fields that are not sampling parameters."""

    model: Text = ""
    """A name that the pool serves or has served, or none; any other one is a 404."""
    n: Annotated[int, Field(ge=1, le=256)] = 1
    """Number of responses to a prompt; a stream has one."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    """`include_usage`."""
    stream_interval: Length = 1
    """An event has at least so many tokens."""
    request_id: Text = ""
    """Part of the answer's `id`; a call that is sent again with it after the manager's death goes on."""
    return_token_ids: bool = False
    """Adds the token ids, and `weight_versions`: the engine and the version that made them."""
    return_tokens_as_token_ids: bool = False
    """Tokens are named by their ids."""
    session_id: Name | None = None
    """Requests of one session go to the same engine where that helps."""
    group: Name | None = None
    """Requests with the same beginning are kept on one engine while that helps."""
    episode: Name | None = None
    """All turns of one are to be of one weight version; `DELETE /episodes/NAME` ends it."""
    timeout_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
    """Deadline in seconds; `request_timeout_s` of the pool where there is none."""
    min_weight_version: WeightVersion = 0
    """Engines with older weights do not get it."""
    expected_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    """The likely length of the response."""
    vocab_size: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Size of the model's vocabulary: an engine that answers another token answers wrongly."""

    @cached_property
    def params(self) -> dict[str, Any]:
        """The sampling parameters, for engines."""
        return {
            name: value
            for name, value in (self.model_extra or {}).items()
            if name not in self.elsewhere
            and not ((name in OF_THE_POOL or name in GRAMMARS) and value in _NOTHING)
        }

    @property
    def includes_usage(self) -> bool:
        """Tell whether usage is reported at the end of a stream."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionCall(OpenAiCall):
    prompt: Annotated[tuple[Prompt, ...], PlainValidator(_prompts)]
    """A text, a list of token ids, or a list of either, of which each has `n` responses."""
    max_tokens: Length = 16
    logprobs: Literal[0] | None = None
    """The logprob of each sampled token; there are no alternatives."""
    add_special_tokens: bool = True
    """Special tokens are added to a prompt that is text."""
    detokenize: bool = True
    """`false`: no text and no names of tokens, which spares the engine."""
    images: Annotated[tuple[ImageContent, ...], PlainValidator(_images)] = ()
    """The images for which tokens of the prompt stand, in order: `digest`, the SHA-256 of the file, and its
    `content` in base64. An image that was sent before needs none; an answer 409 names those that do."""

    @property
    def wanted_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    @property
    def needs_text(self) -> bool:
        return self.detokenize

    @property
    def needs_names(self) -> bool:
        """Tell whether the engine must name the tokens that it samples."""
        return self.wants_logprobs and self.detokenize


class ChatCall(OpenAiCall):
    elsewhere: ClassVar[frozenset[str]] = IGNORED | RENDERED
    messages: Annotated[list[Any], Field(min_length=1)]
    """Texts, and images as `image_url` with a `data:` URL."""
    max_tokens: Length | None = None
    """The limit; `null` leaves it to `max_new_tokens` of the model, or to the rest of the context."""
    max_completion_tokens: Length | None = None
    """Goes before `max_tokens`."""
    logprobs: bool = False
    top_logprobs: Literal[0] = 0
    """There are no alternatives."""
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    """`required`, or an object that names a function, makes a grammar."""
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True

    needs_text: ClassVar[bool] = False
    """An engine reads what the tokens say (`openai_chat`)."""

    @property
    def wanted_tokens(self) -> int | None:
        """Return the most tokens of the response; None: what the context has left."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs

    @property
    def needs_names(self) -> bool:
        return self.logprobs

    @property
    def role(self) -> str:
        """Return the role of the answer: that of the last message if the model continues it."""
        if self.add_generation_prompt:
            return "assistant"
        role = self.messages[-1].get("role") if isinstance(self.messages[-1], dict) else None
        return role if isinstance(role, str) else "assistant"


Call = CompletionCall | ChatCall
C = TypeVar("C", CompletionCall, ChatCall)


def read_call(body: dict[str, Any], model: type[C]) -> C:
    """Raises web.HTTPException for a field of the pool's that is wrong."""
    try:
        call = model.model_validate({name: value for name, value in body.items() if value is not None})
        check_sampling(call.params)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name, words = str(first["loc"][0]), first["msg"].removeprefix("Value error, ")
        raise problem(400, f"{name}: {words}", param=name) from None
    except ValueError as error:
        raise problem(400, str(error), param=str(error).partition(":")[0]) from None
    if call.stream and call.n > 1:
        raise problem(400, "n: a stream has one response", param="n")
    if isinstance(call, CompletionCall) and len(call.prompt) > 1 and (call.stream or call.images):
        raise problem(400, "prompt: a stream and images have one", param="prompt")
    if call.stream_options is not None and not call.stream:
        raise problem(400, "stream_options: only a stream has them", param="stream_options")
    return call
