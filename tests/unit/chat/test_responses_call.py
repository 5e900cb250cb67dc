"""Calls of the Responses API as chats."""

import pytest

from rl_agent.chat.responses_call import read_responses_call

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "status": None, "encrypted_content": None}
TOOL = {"type": "function", "name": "add", "parameters": {}, "strict": True, "description": None}
SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}


def chat(given="Hi", **fields):
    return read_responses_call({"input": given} | fields).chat()


def message(role, *texts, kind="input_text"):
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


def test_a_text_is_the_message_of_the_user():
    assert chat(instructions="Be brief.", model="m")["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_items_of_one_answer_are_one_message():
    thought = THOUGHT | {"content": [{"type": "reasoning_text", "text": "hm"}]}
    text = message("assistant", "I add.", kind="output_text") | {"id": "msg_1", "status": "completed"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "3"}
    items = [{"role": "user", "content": "1"}, thought, text, CALL, CALL, output, message("assistant", "3")]
    assert chat(items)["messages"] == [
        {"role": "user", "content": "1"},
        {"role": "assistant", "reasoning": "hm", "content": "I add.", "tool_calls": [CHAT_CALL, CHAT_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "content": "3"},
    ]


def test_two_answers_beside_each_other_stay_two_messages():
    items = [message("assistant", "a"), message("assistant", "b"), CALL]
    assert chat(items)["messages"] == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [CHAT_CALL]},
    ]


def test_several_parts_and_images_stay_parts():
    image = {"type": "input_image", "image_url": "data:image/png;base64,cGl4", "detail": "auto"}
    item = message("user", "a", "b")
    [shown] = chat([item | {"content": [*item["content"], image]}])["messages"]
    assert shown["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,cGl4"}},
    ]


@pytest.mark.parametrize(
    ("fields", "of_chat"),
    [
        ({"temperature": 0.5, "metadata": {"a": "b"}}, {"temperature": 0.5, "metadata": {"a": "b"}}),
        ({"max_output_tokens": 9}, {"max_completion_tokens": 9}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": SCHEMA, "verbosity": "low"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"include": ["reasoning.encrypted_content"], "store": True, "truncation": "auto"}, {}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"text": {"format": None}, "n": 2}, {}),
        ({"tools": [], "instructions": None, "previous_response_id": None, "background": False}, {}),
    ],
    ids=str,
)
def test_fields_become_those_of_a_chat(fields, of_chat):
    assert chat(**fields) == {"messages": [{"role": "user", "content": "Hi"}]} | of_chat


@pytest.mark.parametrize(
    ("choice", "of_chat"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ({"type": "function", "name": "add"}, {"type": "function", "function": {"name": "add"}}),
        ({"type": "allowed_tools", "tools": []}, {"type": "allowed_tools", "tools": []}),
    ],
    ids=str,
)
def test_tools_have_the_form_of_chats(choice, of_chat):
    read = chat(tools=[TOOL], tool_choice=choice)
    tool = {"type": "function", "function": {"name": "add", "parameters": {}, "strict": True}}
    assert (read["tools"], read["tool_choice"]) == ([tool], of_chat)


@pytest.mark.parametrize(
    ("fields", "begin"),
    [
        ({"input": []}, "input: "),
        ({"input": None}, "input: "),
        ({"input": [{"type": "item_reference", "id": "rs_1"}]}, r"input\[0\]\.type: .*'message'"),
        ({"input": ["Hi"]}, r"input\[0\]: Input should be a valid dictionary$"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            r"input\[0\]\.content\[0\]\.type: ",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id: no response is kept here"),
        ({"conversation": "conv_1"}, "conversation: no response is kept here"),
        ({"background": True}, "background: "),
        ({"prompt": {"id": "p"}}, "prompt: "),
        ({"tools": [{"type": "web_search"}]}, "tools: only functions can be called here, not 'web_search'"),
        ({"tools": [{"type": "function", "function": {"name": "add"}}]}, "tools: .*name beside its type"),
        ({"text": {"format": "json"}}, r"text\.format: "),
        ({"max_output_tokens": 0}, "max_output_tokens: "),
    ],
    ids=str,
)
def test_what_cannot_be_a_chat_is_refused_by_its_field(fields, begin):
    with pytest.raises(ValueError, match=f"^{begin}"):
        read_responses_call({"input": "Hi"} | fields)
