"""Reading requests of the OpenAI API, as vLLM reads them. Pure."""

from dataclasses import dataclass
from typing import Any

from rl_agent.engine.wire import MAX_NAME
from rl_agent.pool.api.openai_fields import ONE_LOGPROB, check_fields, sampling_of
from rl_agent.pool.problem import problem
from rl_agent.pool.scheduler.sampling import check_sampling
from rl_agent.pool.schemas import LONGEST_S, MAX_PROMPT_TOKENS

DEFAULT_MAX_TOKENS = 16
"""The default of a completion; a chat goes on as long as the context lasts."""


@dataclass(frozen=True, slots=True)
class OpenAiRequest:
    """A request of the OpenAI API."""

    model: str
    """Empty: any."""
    prompt_token_ids: tuple[int, ...]
    prompt_text: str
    adds_special_tokens: bool
    """True if special tokens are added to a prompt that is text."""
    messages: list[Any] | None
    wanted_tokens: int | None
    """None: what the context has left."""
    n: int
    stream: bool
    stream_interval: int
    """Tokens of an event, at least."""
    wants_logprobs: bool
    wants_token_ids: bool
    names_by_id: bool
    """Tokens are called by their ids."""
    includes_usage: bool
    """True if usage is reported at the end of a stream."""
    continuous_usage: bool
    """True if usage is reported in every event."""
    request_id: str
    timeout_s: float | None
    min_weight_version: int
    expected_tokens: int | None
    group: str | None
    """The name of requests that begin alike: they are kept on one engine while that helps, and are alike in
    length."""
    episode: str
    """The episode of this turn: all turns of one are to be of one weight version."""
    vocab_size: int | None
    params: dict[str, Any]
    needs_text: bool
    """Chats do not: what the tokens say is read off them by an engine (`openai_chat`)."""
    role: str
    """The role of the message that a chat is answered with."""
    is_parallel: bool
    """A message may call several tools."""

    @property
    def needs_names(self) -> bool:
        """Tell whether the engine must name the tokens that it samples."""
        return self.wants_logprobs and (self.needs_text or self.messages is not None)


def read_asked(body: dict[str, Any], *, is_chat: bool) -> OpenAiRequest:
    """Raises web.HTTPException for what the pool does not do; other parameters are the engine's to judge."""
    check_fields(body, is_chat=is_chat)
    _text_of(body, "user")
    _bool(body, "return_token_offsets", default=False)
    n = _integer(body, "n", 1, at_least=1, at_most=256)
    stream = _bool(body, "stream", default=False)
    params = _params(body, is_chat=is_chat)
    if stream and n > 1:
        raise problem(400, "n: a stream holds one response", param="n")
    if n > 1 and params.get("temperature") == 0:
        raise problem(400, f"n must be 1 when using greedy sampling, got {n}.")
    includes_usage, continuous = _usage_options(body, stream=stream)
    prompt = () if is_chat else _token_ids(body.get("prompt"))
    timeout_s = body.get("timeout_s")
    if timeout_s is not None and not (type(timeout_s) in (int, float) and 0 < timeout_s <= LONGEST_S):
        raise problem(400, "timeout_s: expected seconds", param="timeout_s")
    return OpenAiRequest(
        model=_text_of(body, "model"),
        prompt_token_ids=prompt,
        prompt_text="" if is_chat or prompt else _text(body.get("prompt")),
        adds_special_tokens=_bool(body, "add_special_tokens", default=True),
        messages=_messages(body) if is_chat else None,
        wanted_tokens=_wanted_tokens(body, is_chat=is_chat),
        n=n,
        stream=stream,
        stream_interval=_integer(body, "stream_interval", 1, at_least=1, at_most=2**24),
        wants_logprobs=_wants_logprobs(body, is_chat=is_chat),
        wants_token_ids=_bool(body, "return_token_ids", default=False),
        names_by_id=_bool(body, "return_tokens_as_token_ids", default=False),
        includes_usage=includes_usage,
        continuous_usage=continuous,
        request_id=_text_of(body, "request_id"),
        timeout_s=timeout_s,
        min_weight_version=_integer(body, "min_weight_version", 0, at_least=0, at_most=2**48),
        expected_tokens=_integer(body, "expected_tokens", 0, at_least=0, at_most=2**24) or None,
        group=_name(body, "group") or _name(body, "session_id"),
        episode=_name(body, "episode") or "",
        vocab_size=_integer(body, "vocab_size", 0, at_least=0, at_most=2**31) or None,
        params=params,
        needs_text=not is_chat and body.get("detokenize") is not False,
        role=_role(body),
        is_parallel=_bool(body, "parallel_tool_calls", default=True),
    )


def _params(body: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
    params = sampling_of(body, is_chat=is_chat)
    try:
        check_sampling(params)
    except ValueError as error:
        words = str(error)
        raise problem(400, words, param=words.partition(":")[0]) from None
    return params


def _wanted_tokens(body: dict[str, Any], *, is_chat: bool) -> int | None:
    if not is_chat:
        return _integer(body, "max_tokens", DEFAULT_MAX_TOKENS, at_least=1, at_most=2**24)
    for key in ("max_completion_tokens", "max_tokens"):
        if body.get(key) is not None:
            return _integer(body, key, 0, at_least=1, at_most=2**24)
    return None


def _wants_logprobs(body: dict[str, Any], *, is_chat: bool) -> bool:
    if is_chat:
        return _bool(body, "logprobs", default=False) and body.get("top_logprobs", 0) is not None
    if body.get("logprobs") is None:
        return False
    if _integer(body, "logprobs", 0, at_least=0, at_most=2**31) > 0:
        words = f"logprobs={body['logprobs']}: {ONE_LOGPROB}; ask for 0"
        raise problem(400, words, param="logprobs")
    return True


def _usage_options(body: dict[str, Any], *, stream: bool) -> tuple[bool, bool]:
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise problem(400, "stream_options: expected an object", param="stream_options")
    if options and not stream:
        words = "Stream options can only be defined when `stream=True`."
        raise problem(400, words, param="stream_options")
    includes = _bool(options or {}, "include_usage", default=False)
    return includes, includes and _bool(options or {}, "continuous_usage_stats", default=False)


def _role(body: dict[str, Any]) -> str:
    """Return the answer's role: the last message's where the model goes on with that."""
    messages = body.get("messages")
    if not messages or body.get("add_generation_prompt") is not False:
        return "assistant"
    role = messages[-1].get("role") if isinstance(messages[-1], dict) else None
    return role if isinstance(role, str) else "assistant"


def _bool(body: dict[str, Any], key: str, *, default: bool) -> bool:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise problem(400, f"{key}: expected true or false", param=key)
    return default if value is None else value


def _text_of(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_NAME):
        raise problem(400, f"{key}: expected a text of at most {MAX_NAME} characters", param=key)
    return value or ""


def _integer(body: dict[str, Any], key: str, default: int, *, at_least: int, at_most: int) -> int:
    value = body.get(key)
    if value is None:
        return default
    if type(value) is not int or not at_least <= value <= at_most:
        raise problem(400, f"{key}: expected a whole number from {at_least} to {at_most}", param=key)
    return value


def _name(body: dict[str, Any], key: str) -> str | None:
    name = body.get(key)
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()):
        raise problem(400, f"{key}: expected a name of 1 to 200 printable characters", param=key)
    return name


def _token_ids(prompt: Any) -> tuple[int, ...]:
    """Return the prompt's token ids, also of a list of one list; none if it is text."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list | str):
        prompt = prompt[0]
    if not isinstance(prompt, list) or not prompt:
        return ()
    if len(prompt) > MAX_PROMPT_TOKENS:
        raise problem(
            400, f"prompt: {len(prompt)} tokens; at most {MAX_PROMPT_TOKENS} are taken", param="prompt"
        )
    if set(map(type, prompt)) != {int} or min(prompt) < 0 or max(prompt) >= 2**31:
        raise problem(400, "prompt: expected one text or one list of token ids", param="prompt")
    return tuple(prompt)


def _text(prompt: Any) -> str:
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise problem(400, "prompt: expected one text or one list of token ids", param="prompt")
    return prompt


def _messages(body: dict[str, Any]) -> list[Any]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise problem(400, "messages: expected a list of at least one message", param="messages")
    return messages
