"""Chat completions of OpenAI as an agent's program sends them and reads them. Pure.

A call of the Responses API is read as the chat that it stands for, and answered as such a call.
How a response is sampled is the run's: what a program asks for beside the fields here (`temperature`, `seed`)
is not looked at. A field that would change what may be sampled is refused.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pydantic_core

from rl_agent.chat.client_messages import read_messages
from rl_agent.chat.responses_answer import ResponseEvents, whole_response
from rl_agent.chat.responses_call import ResponsesCall, read_responses_call
from rl_agent.chat.tool_formats import ToolCall
from rl_agent.env.agent.session import ModelAnswer, Question
from rl_agent.system.json_values import problem_of

MAX_CHOICES = 16
MAX_STOPS = 16
DONE = b"data: [DONE]\n\n"
_NOTHING: tuple[Any, ...] = (None, False, [], {}, {"type": "text"}, ["text"])
_NO_TRAINER = "an engine's logprobs under a grammar are of the tokens that it allows, which a trainer lacks"
_UNKNOWN = "this is not supported"
_REFUSED = dict.fromkeys(("response_format", "structured_outputs"), _NO_TRAINER) | dict.fromkeys(
    ("functions", "function_call", "audio", "modalities", "logit_bias", "logprobs"), _UNKNOWN
)
"""Fields that change what is sampled, or what an answer holds, and why they are refused."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for chat completions."""

    question: Question
    model: str
    choices: int
    is_streamed: bool
    includes_usage: bool
    responses_call: ResponsesCall | None = None
    """The call that it stands for."""


def read_responses_request(body: bytes) -> CompletionRequest:
    """Read the body of a call of the Responses API. Raises ValueError like `read_request`."""
    call = read_responses_call(object_of(body))
    return replace(_read_chat(call.chat()), responses_call=call)


def read_request(body: bytes) -> CompletionRequest:
    """Read the body of a request. Raises ValueError that begins with the field that is wrong."""
    return _read_chat(object_of(body))


def object_of(body: bytes) -> dict[str, Any]:
    """Read an object of JSON. Raises ValueError."""
    try:
        given = pydantic_core.from_json(body)
    except ValueError as error:
        raise ValueError(f"body: it is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError("body: expected an object")
    return given


def _read_chat(given: dict[str, Any]) -> CompletionRequest:
    if refused := next((name for name in _REFUSED if given.get(name) not in _NOTHING), None):
        raise ValueError(f"{refused}: {_REFUSED[refused]}; leave it out")
    if problem := problem_of(given, "body"):
        raise ValueError(problem)
    stop = given.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops[:MAX_STOPS]):
        raise ValueError("stop: expected a text or a list of texts")
    limit = given.get("max_completion_tokens") or given.get("max_tokens")
    options = given.get("stream_options")
    images: dict[str, bytes] = {}
    return CompletionRequest(
        Question(
            read_messages(given.get("messages"), images),
            _read_tools(given.get("tools") or []),
            reads_calls=given.get("tool_choice") != "none",
            max_tokens=None if limit is None else _count(limit, "max_completion_tokens", 2**31),
            stop=tuple(stops[:MAX_STOPS]),
            images=images,
        ),
        model=str(given.get("model") or ""),
        choices=_count(given.get("n") or 1, "n", MAX_CHOICES),
        is_streamed=bool(given.get("stream")),
        includes_usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def _count(value: object, name: str, most: int) -> int:
    if not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name}: expected a whole number from 1 to {most}")
    return value


def _read_tools(given: object) -> tuple[dict[str, Any], ...]:
    """Return schemas of functions, of which a chat template shows all that the program wrote."""
    for place, tool in enumerate(given if isinstance(given, list) else [given]):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(f"tools[{place}]: expected a function with a name")
    return tuple(given) if isinstance(given, list) else ()


def completion(request: CompletionRequest, answers: Sequence[ModelAnswer]) -> bytes:
    """Return the body of a whole answer."""
    choices = [
        {"index": index, "message": _message(answer), "logprobs": None, "finish_reason": answer.finish_reason}
        for index, answer in enumerate(answers)
    ]
    body = _base(request, "chat.completion") | {"choices": choices, "usage": _usage(answers)}
    chat = pydantic_core.to_json(body)
    return chat if request.responses_call is None else whole_response(request.responses_call, chat)


def events(request: CompletionRequest, answers: Sequence[ModelAnswer]) -> Iterator[bytes]:
    """Iterate over the events of a streamed answer; each choice comes in one piece."""
    chat = _chat_events(request, answers)
    return chat if request.responses_call is None else map(ResponseEvents(request.responses_call).feed, chat)


def _chat_events(request: CompletionRequest, answers: Sequence[ModelAnswer]) -> Iterator[bytes]:
    base = _base(request, "chat.completion.chunk")
    for index, answer in enumerate(answers):
        message = _message(answer)
        calls = [call | {"index": place} for place, call in enumerate(message.get("tool_calls", ()))]
        delta = message | ({"tool_calls": calls} if calls else {})
        yield _event(base, [{"index": index, "delta": delta, "finish_reason": None}])
        yield _event(base, [{"index": index, "delta": {}, "finish_reason": answer.finish_reason}])
    if request.includes_usage:
        yield _event(base | {"usage": _usage(answers)}, [])
    yield DONE


def models(name: str) -> dict[str, Any]:
    """Return the answer that lists the one model there is."""
    return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "rl_agent"}]}


def error_body(message: str, code: str = "") -> dict[str, Any]:
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": code or None}
    }


def _message(answer: ModelAnswer) -> dict[str, Any]:
    reply = answer.reply
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message |= {"content": reply.content or None, "tool_calls": list(map(_call, reply.calls))}
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    """Return a call with an id of nine letters and digits, which the templates of Mistral want."""
    arguments = pydantic_core.to_json(call.arguments).decode()
    function = {"name": call.name, "arguments": arguments}
    return {"id": secrets.token_hex(5)[:9], "type": "function", "function": function}


def _usage(answers: Sequence[ModelAnswer]) -> dict[str, int]:
    prompt, response = answers[0].prompt_tokens, sum(answer.response_tokens for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": response, "total_tokens": prompt + response}


def _base(request: CompletionRequest, kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": request.model}


def _event(base: dict[str, Any], choices: list[dict[str, Any]]) -> bytes:
    return b"data: " + pydantic_core.to_json(base | {"choices": choices}) + b"\n\n"
