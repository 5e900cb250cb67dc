"""A byte-level tokenizer without merges and a ChatML template: all text round-trips, nothing is fetched."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rl_agent.chat.chat import ChatTokenizer

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
"""Their ids are 0, 1 and 2."""

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def tiny_tokenizer() -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *sorted(alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


def alphabet() -> list[str]:
    return list(pre_tokenizers.ByteLevel.alphabet())


def tiny_chat(template: str = CHATML, **variables: object) -> ChatTokenizer:
    return ChatTokenizer(tiny_tokenizer(), template, {2: TURN_END, 0: END_OF_TEXT}, variables)


def save_tiny_model_folder(folder: Path, template: str = CHATML) -> Path:
    """The tokenizer files of a model folder, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
