"""Lists every field of vLLM's completion and chat requests, and what the pool does with it. Pure.

`docs/reference/openai-api.md` is made from these tables; an extended test holds them against the fields of
vLLM as it is installed. A field that is in no table is given to the engine, which judges it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rl_agent.pool.problem import problem

How = Literal["engine", "pool", "rendered", "ignored", "refused"]
MEANING: dict[How, str] = {
    "engine": "sent to the engine with every attempt",
    "pool": "done by the pool",
    "rendered": "done by an engine, which makes the prompt's tokens or reads the response's",
    "ignored": "without effect, as in vLLM",
    "refused": "400, unless it asks for nothing",
}


@dataclass(frozen=True, slots=True)
class Field:
    """The treatment of a field. `default` is vLLM's; the default always asks for nothing."""

    how: How
    default: Any = None
    note: str = ""


ONE_LOGPROB = "the pool gives the logprob of each sampled token, and no alternatives"
_STARTS_ANEW = "a response that moves to another engine begins anew"
_TEXT = {"type": "text"}

_SAMPLING: dict[str, Field] = {
    "temperature": Field("engine", note="`null`: the model's `generation_config.json` says it, as in vLLM"),
    "top_p": Field("engine", note="as `temperature`"),
    "top_k": Field("engine", note="as `temperature`"),
    "min_p": Field("engine", note="as `temperature`"),
    "repetition_penalty": Field("engine", note="as `temperature`"),
    "presence_penalty": Field("engine", 0.0, _STARTS_ANEW),
    "frequency_penalty": Field("engine", 0.0, _STARTS_ANEW),
    "seed": Field(
        "engine", note="another one, made from it, after a move; with `n` each response has its own"
    ),
    "logit_bias": Field("engine"),
    "stop": Field("pool", [], "found by the pool, also across a move"),
    "include_stop_str_in_output": Field("pool", False),
    "stop_token_ids": Field("engine", []),
    "ignore_eos": Field("engine", False),
    "min_tokens": Field("engine", 0),
    "allowed_token_ids": Field("engine", note=_STARTS_ANEW),
    "bad_words": Field("engine", [], _STARTS_ANEW),
    "spaces_between_special_tokens": Field("engine", True, _STARTS_ANEW),
    "thinking_token_budget": Field("engine", note=_STARTS_ANEW),
    "vllm_xargs": Field("engine", note=_STARTS_ANEW),
    "cache_salt": Field("engine"),
    "use_beam_search": Field("refused", False),
    "length_penalty": Field("refused", 1.0, "is for beam search"),
    "prompt_logprobs": Field("refused"),
    "logprob_token_ids": Field("refused", [], ONE_LOGPROB),
    "repetition_detection": Field("refused", note="a response ends with `stop` or `length`"),
    "kv_transfer_params": Field("refused", note="the pool decides which engine runs what"),
    "ec_transfer_params": Field("refused", note="the pool decides which engine runs what"),
    "routed_experts_prompt_start": Field("refused", 0),
    "priority": Field("refused", 0, "runs share a pool fairly (`X-Run`)"),
}
_CALL: dict[str, Field] = {
    "model": Field("pool", note="a name that the pool serves or has served, or none; else 404"),
    "max_tokens": Field("pool"),
    "n": Field("pool", 1, "up to 256; a stream holds one response"),
    "stream": Field("pool", False),
    "stream_options": Field("pool", note="`include_usage` and `continuous_usage_stats`"),
    "stream_interval": Field("pool", note="at least so many tokens an event"),
    "request_id": Field(
        "pool", note="in the `id` of the answer; sent again after the manager's death, the call goes on"
    ),
    "session_id": Field("pool", note="requests of one session go to the same engine where that helps"),
    "return_token_ids": Field("pool", note="adds `weight_versions`, too: which engine and version made them"),
    "return_tokens_as_token_ids": Field("pool"),
    "user": Field("ignored"),
    "return_token_offsets": Field("ignored", False),
}
COMPLETION: dict[str, Field] = {
    "prompt": Field("pool", note="one text or one list of token ids; several are refused"),
    **_CALL,
    "max_tokens": Field("pool", 16),
    "logprobs": Field("pool", 0, f"`0` is given; more are refused: {ONE_LOGPROB}"),
    **_SAMPLING,
    "skip_special_tokens": Field("engine", True),
    "response_format": Field("engine", _TEXT, _STARTS_ANEW),
    "structured_outputs": Field("engine", note=_STARTS_ANEW),
    "add_special_tokens": Field("rendered", True),
    "echo": Field("refused", False),
    "suffix": Field("refused", note="as vLLM does"),
    "prompt_embeds": Field("refused", []),
    "truncate_prompt_tokens": Field("refused", note="cut the prompt before it is sent"),
    "truncation_side": Field("refused", note="cut the prompt before it is sent"),
}
_TEMPLATE = (
    *("tools", "chat_template", "chat_template_kwargs", "documents", "reasoning_effort"),
    *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
    *("truncate_prompt_tokens", "truncation_side"),
)
CHAT: dict[str, Field] = {
    "messages": Field("rendered", note="text; images are refused"),
    **_CALL,
    "max_tokens": Field(
        "pool", note="without one, `max_new_tokens` of the model's, or what the context has left"
    ),
    "max_completion_tokens": Field("pool", note="goes before `max_tokens`"),
    "logprobs": Field("pool", False),
    "top_logprobs": Field("refused", 0, ONE_LOGPROB),
    **_SAMPLING,
    "skip_special_tokens": Field("rendered", True),
    **{name: Field("rendered") for name in _TEMPLATE},
    "tool_choice": Field(
        "rendered", note="`none` and `auto`; others need a grammar, `null` loses the calls: refused"
    ),
    "parallel_tool_calls": Field("pool", True),
    "include_reasoning": Field("refused", True, "leave out `reasoning` where it is read"),
    "response_format": Field("refused", _TEXT, "a grammar has to begin where the reasoning ends"),
    "structured_outputs": Field("refused", note="a grammar has to begin where the reasoning ends"),
    "echo": Field("refused", False),
    "return_prompt_text": Field("refused", False),
    "return_assistant_tokens_mask": Field("ignored", False),
    "media_io_kwargs": Field("ignored", note="images are refused"),
    "mm_processor_kwargs": Field("ignored", note="images are refused"),
}
DIFFERENCES = (
    "`system_fingerprint` is `null`: a response may come of several engines.",
    "A response that moves between engines is the one that a single engine would have given, but for the"
    " random numbers after the move; where a field says that it begins anew, so do they. It is never shown"
    " twice.",
    "With `return_token_ids` a choice has `weight_versions` besides.",
    "Events of a stream hold as many tokens as had come; a chat's are further apart the longer it gets, and"
    " its tool calls come whole.",
    "In a stream `text_offset` adds up the names of the tokens of one event, from where its text begins: as"
    " in vLLM, whose events may hold other tokens.",
    "A streamed chat says what the whole answer would. So a tool call that was cut off is text, with the"
    " finish `length`, and white space before a call is left out; vLLM's stream has begun the call by then.",
    "An error that is found before the first event of a stream is an answer of its own, with its status; vLLM"
    " sends some of these as an event, with status 200.",
    "`usage.completion_tokens_details` is `null`: reasoning tokens are not counted.",
    'Types are strict: `"3"`, `3.0` or `true` is no number, and `1` no truth value. But there may be up to 64'
    " stop strings, not only 4.",
    "Messages of errors are the pool's own words where the pool finds the error, and so may be their `type`"
    " and `param`.",
)
"""The differences between the pool's answers and vLLM's."""
OWN = {
    "timeout_s": "deadline of the request in seconds; without one `request_timeout_s` of the pool",
    "min_weight_version": "engines with older weights do not get it",
    "expected_tokens": "how long the response is likely to be",
    "group": "requests with the same beginning: kept on one engine while that helps",
    "episode": "all turns of one are to be of one weight version; `DELETE /episodes/NAME` ends it",
    "vocab_size": "of the model: an engine that answers another token answers wrongly",
    "detokenize": "`false`: no text and no names of tokens, which spares the engine",
    "eos_token_ids": "tokens that end a response: known to be whole if its engine dies after one of them",
}
"""Fields that only a pool knows."""
_OPENAIS = frozenset(
    {"metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity", "best_of"}
)
"""The fields of OpenAI alone; vLLM ignores them."""
_KNOWN_TO_THE_POOL = frozenset({"stop", "include_stop_str_in_output", "eos_token_ids"})
"""The fields of sampling that are not for engines."""


NEVER_NULL = frozenset(
    {"add_special_tokens", "bad_words", "ignore_eos", "include_stop_str_in_output", "length_penalty"}
    | {"min_tokens", "n", "priority", "request_id", "routed_experts_prompt_start", "skip_special_tokens"}
    | {"spaces_between_special_tokens", "use_beam_search"}
)
"""Fields of a completion that vLLM takes no `null` for; a chat's are read by an engine, which refuses it."""


def check_fields(body: Mapping[str, Any], *, is_chat: bool) -> None:
    """Raises web.HTTPException for the first field that asks for what the pool does not do."""
    for name in () if is_chat else NEVER_NULL & body.keys():
        if body[name] is None:
            raise problem(400, f"{name}: null is no value of it; leave it out", param=name)
    for name, field in (CHAT if is_chat else COMPLETION).items():
        value = body.get(name)
        if field.how != "refused" or value is None or value == field.default:
            continue
        shown = str(value)[:100]
        why = f": {field.note}" if field.note else ""
        raise problem(400, f"{name}={shown}: the pool does not do this; leave it out{why}", param=name)
    choice = body.get("tool_choice", "auto")
    if is_chat and choice not in ("none", "auto"):  # for null vLLM parses calls, and then drops them
        words = f"tool_choice={str(choice)[:100]}: the pool does none and auto; leave it out"
        raise problem(400, words, param="tool_choice")


def sampling_of(body: Mapping[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """Return the sampling parameters of a request, without those that only state a default."""
    fields, found = CHAT if is_chat else COMPLETION, dict[str, Any]()
    for name, value in body.items():
        field = fields.get(name)
        is_unknown = field is None and name not in OWN and name not in _OPENAIS
        is_sampling = (
            is_unknown or name in _KNOWN_TO_THE_POOL or (field is not None and field.how == "engine")
        )
        if is_sampling and value is not None and not (field is not None and value == field.default):
            found[name] = value
    skips = body.get("skip_special_tokens")
    return found | {"skip_special_tokens": True if skips is None else skips}
