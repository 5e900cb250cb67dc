"""Calls as models write them, and texts that are none."""

import contextlib
import json
import time

import pytest

from rl_agent.chat.tool_formats import FORMATS, ToolCall, UnreadableCall

BY_NAME = {tool_format.name: tool_format for tool_format in FORMATS}
TYPES = {"text": {"type": "string"}, "page": {"type": "integer"}, "tags": {"type": "array"}}
FIND_SCHEMA = {"name": "find", "parameters": {"type": "object", "properties": TYPES}}
SCHEMAS = {"find": {"type": "function", "function": FIND_SCHEMA}}
FIND = ToolCall("find", {"text": "a </b> {c}", "page": 2})

ARGUMENTS = '{"text": "a </b> {c}", "page": 2}'
BY_ARGUMENTS = f'{{"name": "find", "arguments": {ARGUMENTS}}}'
BY_PARAMETERS = f'{{"name": "find", "parameters": {ARGUMENTS}}}'
WRITTEN = {
    "hermes": f"<tool_call>\n{BY_ARGUMENTS}\n</tool_call>",
    "hermes, the end left out": f"<tool_call>{BY_ARGUMENTS}",
    "hermes, words before": f"I look.\n<tool_call>{BY_ARGUMENTS}</tool_call>",
    "hermes, arguments as text": (
        f'<tool_call>{{"name": "find", "arguments": {json.dumps(ARGUMENTS)}}}</tool_call>'
    ),
    "hermes, parameters": f"<tool_call>{BY_PARAMETERS}</tool_call>",
    "qwen3_coder": (
        "<tool_call>\n<function=find>\n<parameter=text>\na </b> {c}\n</parameter>\n<parameter=page>\n2\n"
        "</parameter>\n</function>\n</tool_call>"
    ),
    "llama3_json": BY_PARAMETERS,
    "llama3_json, tagged": f"<|python_tag|>{BY_PARAMETERS}",
    "mistral": f"[TOOL_CALLS] [{BY_ARGUMENTS}]",
    "mistral, by name": f"[TOOL_CALLS]find[ARGS]{ARGUMENTS}",
    "mistral, with an id": f"[TOOL_CALLS]find[CALL_ID]abcdefghi[ARGS]{ARGUMENTS}",
}


def read(name, text):
    written_as = BY_NAME[name.partition(",")[0]]
    return written_as.read(text, SCHEMAS) if written_as.begins(text) else None


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_is_read_in_the_format_of_its_model(name):
    assert read(name, WRITTEN[name]) == (FIND, "")


@pytest.mark.parametrize("name", BY_NAME)
def test_words_alone_are_no_call(name):
    assert read(name, "The page says that a < b, and [that] is all.") is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", WRITTEN["hermes"] * 2),
        ("qwen3_coder", WRITTEN["qwen3_coder"] * 2),
        ("llama3_json", WRITTEN["llama3_json"] + "; " + WRITTEN["llama3_json"]),
        ("mistral", WRITTEN["mistral"][:-1] + ', {"name": "find", "arguments": {}}]'),
        ("mistral", WRITTEN["mistral, by name"] * 2),
    ],
)
def test_of_several_calls_the_first_is_read_and_the_others_are_noticed(name, text):
    call, rest = read(name, text)
    assert (call, rest != "") == (FIND, True)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("hermes", "<tool_call>", "it ends before its JSON begins"),
        ("hermes", '<tool_call>{"name": "find", "argum', "its JSON is cut off"),
        ("hermes", "<tool_call>{'name': 'find'}</tool_call>", "Expecting property name enclosed"),
        ("hermes", '<tool_call>["find"]</tool_call>', "it is not a JSON object"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "it has no name"),
        ("hermes", '<tool_call>{"name": "find", "arguments": [1]}</tool_call>', "arguments are not a JSON"),
        ("hermes", '<tool_call>{"name": "find", "args": {"page": 2}}</tool_call>', "it has 'args' where its"),
        ("llama3_json", '{"name": "find", "param', "its JSON is cut off"),
        ("hermes", '<tool_call>{"name": "find"} and more</tool_call>', "there is no </tool_call>"),
        ("hermes", '<tool_call>{"name": "find", "arguments": {"page": NaN}}', "NaN is not JSON"),
        ("hermes", '<tool_call>{"page": ' + "1" * 5000 + "}", "a number that is too long"),
        ("hermes", "<tool_call>" + "[" * 100_000, "nested too deeply"),
        ("qwen3_coder", "<tool_call>find</tool_call>", "there is no <function="),
        ("qwen3_coder", "<function=find><parameter=text>a", "its </function> is missing"),
        ("qwen3_coder", "<function=find><parameter=text>a</function>", "a </parameter> is missing"),
        ("llama3_json", '{"name": "find", "parameters": {}} is what I do', "text after its JSON"),
        ("mistral", "[TOOL_CALLS][]", "its list of calls is empty"),
    ],
)  # fmt: skip
def test_unreadable_calls_are_explained_in_one_line(name, text, reason):
    with pytest.raises(UnreadableCall) as refusal:
        read(name, text)

    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_parameter_written_as_text_has_the_type_of_its_schema():
    text = (
        "<function=find><parameter=text>12</parameter><parameter=page>12</parameter>"
        '<parameter=tags>["a"]</parameter><parameter=other>x y</parameter></function>'
    )

    call, _ = read("qwen3_coder", text)

    assert call.arguments == {"text": "12", "page": 12, "tags": ["a"], "other": "x y"}


COLOURS = {"$defs": {"Colour": {"enum": ["red", "None"], "type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}}}


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "12", 12),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "12", "12"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"oneOf": [{"type": "boolean"}, {"type": "integer"}]}, "True", True),
        ({"allOf": [{"type": "string"}]}, "7", "7"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "true", True),
        ({"type": "string"}, "True", "True"),
        ({"type": "string"}, "None", "None"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"enum": [True, None]}, "None", None),
        ({"const": "3"}, "3", "3"),
        ({"$ref": "#/$defs/Colour"}, "None", "None"),
        ({"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]}, "red", "red"),
        ({"$ref": "#/$defs/Loop"}, "1", 1),
        ({"type": "array"}, '["a"]', ["a"]),
        ({}, "True", True),
        ({}, "word", "word"),
        ({"type": "integer"}, "True", "True"),
    ],
)
def test_a_parameter_has_the_type_that_any_keyword_of_its_schema_gives(schema, written, value):
    parameters = {"type": "object", "properties": {"p": schema}} | COLOURS
    schemas = {"f": {"type": "function", "function": {"name": "f", "parameters": parameters}}}
    text = f"<function=f>\n<parameter=p>\n{written}\n</parameter>\n</function>"
    call, _ = BY_NAME["qwen3_coder"].read(text, schemas)
    assert call.arguments == {"p": value} and type(call.arguments["p"]) is type(value)


@pytest.mark.parametrize(
    "text", ['{"answer": 42}', "{a + b}", "{1, 2}", '{"answer": {"name": "x"}}', "  {}", '{"half": ']
)
def test_an_object_without_a_name_is_an_answer(text):
    assert read("llama3_json", text) is None


MARKS = (
    "<tool_call>", "</tool_call>", "<function=", "<function=f>", "<parameter=p>", "</parameter>",
    "[TOOL_CALLS]", "[ARGS]", "{", '{"', "[", "\\", " ", "<parameter=p></parameter>", "<|python_tag|>", '"',
    "<function=f></function>", '<tool_call>{"name": "find", "arguments": {}}</tool_call>',
)  # fmt: skip


@pytest.mark.parametrize("name", BY_NAME)
def test_a_mark_that_is_repeated_a_hundred_thousand_times_is_read_at_once(name):
    """Quadratic work would take minutes; each takes a few thousandths of a second."""
    began = time.process_time()
    for mark in MARKS:
        many = mark * 100_000
        for text in (many, "<function=f>" + many, "[TOOL_CALLS]f[ARGS]" + many, f"[TOOL_CALLS]f{many}x"):
            with contextlib.suppress(UnreadableCall):
                read(name, text)

    assert time.process_time() - began < 30
