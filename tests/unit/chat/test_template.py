"""Templates are rendered as transformers renders them: what the model was trained on is what it is shown."""

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from rl_agent.chat.template import compile_template, render
from rl_agent.errors import ConfigError

ASKED = [{"role": "user", "content": "2 < 3 & 'Äther'?"}, {"role": "assistant", "content": "Yes."}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"b": 1, "a": [2, "ö"]}}}]
WRITTEN = {
    "nothing is none": "{%- if tools is not none %}tools{% endif %}{% if documents is none %}none{% endif %}",
    "spans of the model": (
        "{%- for m in messages %}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "json of few characters": "{{- tools | tojson(separators=(',', ':')) }}",
    "json in order": "{{- tools | tojson(sort_keys=true, indent=4) }}",
    "json as it is": "{{- messages | tojson }}",
    "loops that end": "{%- for m in messages %}{{ m.role }}{% break %}{% endfor %}{{ strftime_now('%Y') }}",
}


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["without tools", "with tools"])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_template_is_rendered_as_transformers_renders_it(name, tools):
    (theirs,), _ = render_jinja_template([ASKED], tools=tools, chat_template=WRITTEN[name])
    variables = {"tools": tools} if tools else {}

    ours = render(compile_template(WRITTEN[name], "model"), ASKED, variables, add_generation_prompt=False)

    assert ours == theirs


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system role') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content }}",
        "{{ messages[0].content | tojson(indent='x', ensure_ascii=2, wrong=1) }}",
        "{{ 1 / 0 }}",
        "{% for n in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_a_conversation_that_breaks_a_template_is_refused_in_one_line(template):
    with pytest.raises(ConfigError, match="the chat template refuses this conversation: ") as refusal:
        render(compile_template(template, "model"), ASKED, {}, add_generation_prompt=False)

    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("template", ["{% if %}", "{% generation %}", "{{ 'a' | nothing }}"])
def test_a_template_that_is_none_is_named(template):
    with pytest.raises(ConfigError, match="model: the chat template cannot be read"):
        compile_template(template, "model")
