"""Chat templates with tools, one for each format in which models write calls."""

from rl_agent.paths import PROJECT_ROOT

HERMES = (PROJECT_ROOT / "data" / "tools" / "chat_template.jinja").read_text(encoding="utf-8")

_BEGIN = '{{- \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
_END = "{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}"
_PARAMETERS = (
    "{%- for key, value in call.function.arguments | items %}"
    "{{- '<parameter=' + key + '>\\n' + (value | string) + '\\n</parameter>\\n' }}{%- endfor %}"
)


def _with_calls(begin: str, end: str) -> str:
    assert _BEGIN in HERMES
    assert _END in HERMES
    return HERMES.replace(_BEGIN, begin).replace(_END, end)


OF_FORMAT = {
    "hermes": HERMES,
    "qwen3_coder": _with_calls(
        "{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}" + _PARAMETERS,
        "{{- '</function>\\n</tool_call>' }}",
    ),
    "llama3_json": _with_calls(
        '{{- \'{"name": "\' + call.function.name + \'", "parameters": \' }}',
        "{{- (call.function.arguments | tojson) + '}' }}",
    ),
    "mistral": _with_calls("{{- '[TOOL_CALLS] [' + (call.function | tojson) }}", "{{- ']' }}"),
}


def _with_images(template: str) -> str:
    """Return a template that shows the parts of every message, as those of Qwen's vision models do."""
    macro = (
        "{%- macro shown(content) %}{%- if content is string %}{{- content }}{%- else %}"
        "{%- for part in content %}"
        "{%- if part.type == 'text' %}{{- part.text }}{%- else %}{{- '<image>' }}{%- endif %}{%- endfor %}"
        "{%- endif %}{%- endmacro %}"
    )
    return macro + template.replace("message.content", "shown(message.content)")


VISUAL = _with_images(HERMES)
VISUAL_BUT_FOR_TOOLS = VISUAL.replace(
    "'<|im_start|>user\\n<tool_response>\\n' + shown(message.content)",
    "'<|im_start|>user\\n<tool_response>\\n' + (message.content | string)",
)
HIDES_IMAGES_OF_TOOLS = VISUAL.replace(
    "'<|im_start|>user\\n<tool_response>\\n' + shown(message.content)",
    "'<|im_start|>user\\n<tool_response>\\n' + shown(message.content).replace('<image>', '')",
)
ALTERNATING = (
    "{%- set turns = namespace(count=0) %}{%- for message in messages %}"
    "{%- if message.role == 'user' or (message.role == 'assistant' and message.tool_calls is undefined) %}"
    "{%- if (message.role == 'user') != (turns.count % 2 == 0) %}"
    "{{- raise_exception('roles must alternate user and assistant') }}{%- endif %}"
    "{%- set turns.count = turns.count + 1 %}{%- endif %}{%- endfor %}"
)
"""Mistral's check: what tools answer does not count as a turn, so a second response follows the first."""
