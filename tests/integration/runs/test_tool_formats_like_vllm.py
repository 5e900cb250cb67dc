"""Readings of tool calls beside those of the installed vLLM's own parsers."""

import json
from importlib.util import find_spec

import pytest

from rl_agent.chat.tool_formats import FORMATS

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

CALLS = (
    ("add", {"a": 17, "b": -2.5}),
    ("say", {"text": 'a </b> {"c"} Äther 水\n\\n', "often": True, "more": [1, {"d": None}]}),
    ("rest", {}),
)
PARSERS = {
    "hermes": ("vllm.tool_parsers.hermes_tool_parser", "Hermes2ProToolParser"),
    "llama3_json": ("vllm.tool_parsers.llama_tool_parser", "Llama3JsonToolParser"),
    "mistral": ("vllm.tool_parsers.mistral_tool_parser", "MistralToolParser"),
}
WRITE = {
    "hermes": lambda name, text: (
        f'I call.\n<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'
    ),
    "llama3_json": lambda name, text: f'{{"name": "{name}", "parameters": {text}}}',
    "mistral": lambda name, text: f'[TOOL_CALLS] [{{"name": "{name}", "arguments": {text}}}]',
}


class AnyTokenizer:
    """Has every token that a parser looks for."""

    def get_vocab(self):
        return dict.fromkeys(("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"), 1)

    def encode(self, text, **_):
        return [1]

    def decode(self, ids, **_):
        return "".join(map(str, ids))


@pytest.mark.parametrize("name", PARSERS)
def test_a_call_says_the_same_to_vllm_and_here(name):
    import importlib

    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    module, parser = PARSERS[name]
    theirs = getattr(importlib.import_module(module), parser)(AnyTokenizer())
    (ours,) = [tool_format for tool_format in FORMATS if tool_format.name == name]
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], model="m")
    for function, arguments in CALLS:
        text = WRITE[name](function, json.dumps(arguments, ensure_ascii=False))
        (call,) = theirs.extract_tool_calls(text, request).tool_calls
        read, _ = ours.read(text, {})
        assert (read.name, read.arguments) == (call.function.name, json.loads(call.function.arguments))
