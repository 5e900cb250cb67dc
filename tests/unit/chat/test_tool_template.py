import pytest

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.tool_template import check_images_of_tools, tool_format_of
from rl_agent.errors import ConfigError
from tests.support.tiny_chat import CHATML, TURN_END, tiny_chat, tiny_tokenizer
from tests.unit.chat.tool_templates import (
    ALTERNATING,
    HERMES,
    HIDES_IMAGES_OF_TOOLS,
    OF_FORMAT,
    VISUAL,
    VISUAL_BUT_FOR_TOOLS,
)


@pytest.mark.parametrize("name", OF_FORMAT)
def test_the_format_is_the_one_that_the_template_itself_writes(name):
    assert tool_format_of(tiny_chat(OF_FORMAT[name])).name == name


OPENED = HERMES.replace("'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}")
THOUGHT = "{%- if message.tool_calls %}{{- '<think>\\n</think>' }}{%- endif %}"
OF_THE_FAMILY = {
    "arguments as text": HERMES.replace("call.function.arguments | tojson", "call.function.arguments"),
    "opened thoughts": OPENED.replace("{%- for call in", THOUGHT + "{%- for call in"),
    "opened thoughts that earlier turns lack": OPENED,
    "tools answer as a role of their own": HERMES.replace("'tool' %}", "'none' %}"),
}


@pytest.mark.parametrize("template", OF_THE_FAMILY.values(), ids=OF_THE_FAMILY)
def test_a_template_of_the_same_family_is_recognised(template):
    assert template != HERMES
    assert tool_format_of(tiny_chat(template)).name == "hermes"


REFUSED = "{%- if message.role == 'tool' %}{{- raise_exception('tools do not answer') }}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (CHATML, "does not show `tools`"),
        (HERMES.replace("<tool_call>\\n{", "CALL {"), "in another format than hermes, qwen3_coder"),
        (HERMES.replace("+ message.content + '\\n</tool_response>", "+ '</tool_response>"), "does not show"),
        (HERMES.replace("{%- if message.role == 'tool' %}", REFUSED), "tools do not answer"),
    ],
    ids=["no tools", "an unknown format", "answers hidden", "role refused"],
)  # fmt: skip
def test_a_template_whose_calls_cannot_be_read_is_refused_in_one_line(template, reason):
    assert template != HERMES
    with pytest.raises(ConfigError, match=r"policy_config\.action_format=tool_calls") as refusal:
        tool_format_of(tiny_chat(template))

    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("template", [VISUAL, HERMES], ids=["parts", "text alone"])
def test_a_template_that_can_show_what_tools_answer_twice_is_taken(template):
    check_images_of_tools(tiny_chat(template), "Act.")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (ALTERNATING + VISUAL, "roles must alternate"),
        (ALTERNATING + HERMES, "roles must alternate"),
        (VISUAL_BUT_FOR_TOOLS, "does not show images"),
        (HIDES_IMAGES_OF_TOOLS, "does not show images"),
    ],
    ids=["a second response refused", "refused with text alone", "images as words", "images hidden"],
)
def test_a_template_without_images_in_tool_answers_is_refused_in_one_line(template, reason):
    assert template not in {VISUAL, HERMES}
    assert tool_format_of(tiny_chat(template)).name == "hermes"
    message = r"policy_config\.action_format=tool_calls: .*two tool calls"
    with pytest.raises(ConfigError, match=message) as refusal:
        check_images_of_tools(tiny_chat(template), "Act.")

    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_eos_token_that_the_tokenizer_lacks_ends_no_call():
    chat = ChatTokenizer(tiny_tokenizer(), HERMES, {2: TURN_END, 99_999: ""}, {})
    assert tool_format_of(chat).name == "hermes"
