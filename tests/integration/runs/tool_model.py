"""A tiny model that was taught one conversation by heart: a question, a call of a tool, an answer."""

import sys
from pathlib import Path
from typing import Any

from rl_agent.paths import PROJECT_ROOT

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
GOOD_ENOUGH, MOST_STEPS = 0.01, 2000


def make_tool_model(folder: Path) -> Path:
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    folder.mkdir(parents=True)
    texts = [QUESTION, ANSWER, '<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": 25}}\n</tool_call>']
    save_tokenizer(train_tokenizer(texts), folder, max_length=256)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    whole = tokenizer.apply_chat_template(CONVERSATION, return_tensors="pt", return_dict=True)["input_ids"]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.set_num_threads(1)  # steps are so small that threads only wait for each other
    for _ in range(MOST_STEPS):
        loss = model(input_ids=whole, labels=whole).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < GOOD_ENOUGH:
            model.save_pretrained(folder)
            return folder
    raise AssertionError(f"it did not learn its conversation: loss {loss.item():.3f}")
