"""A tiny model that was taught one conversation by heart: a question, a call of a tool, an answer."""

import sys
from pathlib import Path
from typing import Any

from rl_agent.paths import PROJECT_ROOT
from tests.integration.runs.taught_model import teach

sys.path.insert(0, str(PROJECT_ROOT / "data"))

from tiny_tokenizer import save_tokenizer, train_tokenizer

TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' + (message.content or '') -}}"
    "{%- for call in message.tool_calls or [] -%}"
    '{{- \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' -}}'
    "{{- (call.function.arguments | tojson) + '}\n</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
QUESTION, ANSWER = "What is 17 + 25?", "The sum is 42."
CALL = {"name": "add", "arguments": {"a": 17, "b": 25}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": CALL}]},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": ANSWER},
]


def make_tool_model(folder: Path) -> Path:
    from transformers import AutoTokenizer

    folder.mkdir(parents=True)
    texts = [QUESTION, ANSWER, '<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": 25}}\n</tool_call>']
    save_tokenizer(train_tokenizer(texts), folder, max_length=256)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    whole = tokenizer.apply_chat_template(CONVERSATION, return_dict=True)["input_ids"]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    teach(folder, lambda: [([], whole)], vocab_size=len(tokenizer), end=end, max_length=256)
    return folder
