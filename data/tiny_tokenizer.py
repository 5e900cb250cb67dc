"""A small byte-level BPE tokenizer with ChatML turns, as the tiny base model uses it.

Any text round-trips. Digits and newlines are always tokens of their own: arithmetic stays learnable, and a
conversation has the same ids whether it is tokenised turn by turn (LLaMA-Factory) or as a whole.
The chat template is LLaMA-Factory's `qwen3_nothink`, without a default system prompt.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TURN_START, TURN_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
VOCAB_SIZE = 512

WORDS = Regex(r"\d|\n| ?\p{L}+| ?[^\s\p{L}\d]+|\s")

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def train_tokenizer(texts: Iterable[str], words: Regex = WORDS) -> Tokenizer:
    """Learn the merges from `texts`, none across `words`; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_length: int) -> None:
    """Write the files that transformers' AutoTokenizer, vLLM and LLaMA-Factory read."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [TURN_START, TURN_END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(settings, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def prompt_text(user: str) -> str:
    """The text before a response to one user turn."""
    return f"{TURN_START}user\n{user}{TURN_END}\n{TURN_START}assistant\n"


def response_text(response: str) -> str:
    """The text of an assistant turn, after its header."""
    return f"{response}{TURN_END}\n"
