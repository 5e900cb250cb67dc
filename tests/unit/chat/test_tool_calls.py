import json
import time

import pytest

from rl_agent.chat.tool_calls import MORE_CALLS, Toolbox, action_of, call_of, check_schemas
from rl_agent.chat.tool_formats import FORMATS, ToolCall

HERMES = next(tool_format for tool_format in FORMATS if tool_format.name == "hermes")


def schema(name="add", **parameters):
    parameters = parameters or {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


def read(response, *schemas):
    return Toolbox(check_schemas(schemas or (schema(),)), HERMES).read(response)


def call(**written):
    return f"<tool_call>\n{json.dumps(written)}\n</tool_call>"


def test_a_call_becomes_json_that_an_environment_reads_back():
    parsed = read("<think>add them</think>I add. " + call(name="add", arguments={"a": 17, "b": 25}))

    assert parsed.is_call
    assert not parsed.problem
    assert json.loads(parsed.action) == {"name": "add", "arguments": {"a": 17, "b": 25}}
    assert call_of(parsed.action) == ToolCall("add", {"a": 17, "b": 25})


def test_a_response_that_calls_nothing_is_its_text():
    parsed = read("<think>" + call(name="add", arguments={}) + "</think> It is 42. ")

    assert (parsed.action, parsed.is_call, parsed.problem) == ("It is 42.", False, "")
    assert call_of(parsed.action) is None


def test_the_agent_is_told_that_only_its_first_call_was_carried_out():
    two = call(name="add", arguments={"a": 1, "b": 2}) + call(name="add", arguments={"a": 3, "b": 4})

    assert read(two).remark == MORE_CALLS
    assert call_of(read(two).action) == ToolCall("add", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        ("<tool_call>add(1, 2)</tool_call>", "This tool call cannot be read: Expecting value at character 0"),
        (call(name="sub", arguments={}), "There is no tool 'sub'; there are add"),
        (call(name="add", arguments={"a": 1}), 'The arguments of add do not fit: "b" is a required property'),
        (call(name="add", arguments={"a": 1, "b": "2"}), "do not fit (at b): \"2\" is not of type"),
        (call(name="add", arguments={"a": 1, "b": 2, "c": 3}), "'c' was unexpected"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1e999}}', "a number that is too large"),
        ('<tool_call>{"name": "\\ud800", "arguments": {}}', "half a character"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_carried_out_is_explained_in_one_short_line(response, problem):
    parsed = read(response)

    assert problem in parsed.problem
    assert parsed.is_call
    assert "\n" not in parsed.problem
    assert len(parsed.problem) <= 300


def test_quotes_in_a_problem_are_cut():
    assert len(read(call(name="add", arguments={"a": 1, "b": "x" * 100_000})).problem) <= 300


@pytest.mark.parametrize(
    ("schemas", "problem"),
    [
        ([], "no list of functions"),
        ({"add": {}}, "no list of functions"),
        (["add"], 'not {"type": "function"'),
        ([{"type": "function", "function": {}}], 'not {"type": "function"'),
        ([schema(), schema()], "two functions are named 'add'"),
        ([schema(type="nonsense")], "the schema of 'add' cannot be used"),
        ([schema(**{"$ref": "http://127.0.0.1:9/secret"})], "external schemas are not read"),
        ([schema(**{"$ref": "file:///etc/hostname"})], "external schemas are not read"),
    ],
)
def test_schemas_that_no_model_can_be_shown_are_refused_in_one_line(schemas, problem):
    with pytest.raises(ValueError, match=r"schema|functions|name") as refusal:
        check_schemas(schemas)

    assert problem in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_pattern_that_backtracks_for_ever_elsewhere_is_matched_at_once():
    evil = schema(type="object", properties={"a": {"type": "string", "pattern": "^(a+)+$"}})
    began = time.process_time()

    parsed = read(call(name="add", arguments={"a": "a" * 50_000 + "!"}), evil)

    assert "do not fit" in parsed.problem
    assert time.process_time() - began < 30


@pytest.mark.parametrize(
    "action", ["", "42", "{", '{"name": "add"}', '{"name": 1, "arguments": {}}', "{" * 9999]
)
def test_text_is_no_call(action):
    assert call_of(action) is None


def test_letters_of_other_scripts_stay_readable():
    action = action_of(ToolCall("say", {"what": "Äther 水"}))
    assert action == '{"name": "say", "arguments": {"what": "Äther 水"}}'
