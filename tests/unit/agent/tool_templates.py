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
