"""A tiny model that has learnt its answers by heart, so that a real engine calls tools as they say."""

from pathlib import Path

from tests.integration.tiny_model import make_tiny_model, prompt_text

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ANSWERS = {
    "call": CALL,
    "talk": "I shall add." + CALL,
    "twice": CALL + "\n" + CALL.replace('"a": 1', '"b": 2'),
    "break off": CALL[:-14],
    "no call": "Two, of course.",
}
"""Answers that follow the user's words."""
_STEPS = 200
_RATE = 3e-3


def make_calling_model(folder: Path) -> Path:
    """Write the folder of a model that answers what `ANSWERS` says, whatever is asked besides."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    make_tiny_model(folder, hidden_size=128)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder)
    pairs = [
        (tokenizer.encode(prompt_text(user)).ids, tokenizer.encode(answer + "<|im_end|>").ids)
        for user, answer in ANSWERS.items()
    ]
    longest = max(len(prompt) + len(answer) for prompt, answer in pairs)
    tokens = torch.zeros(len(pairs), longest, dtype=torch.long)
    labels = torch.full_like(tokens, -100)
    for row, (prompt, answer) in enumerate(pairs):
        size = len(prompt) + len(answer)
        tokens[row, :size] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : size] = torch.tensor(answer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE)
    for _ in range(_STEPS):
        loss = model(input_ids=tokens, labels=labels).loss
        if loss.item() < 0.02:
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder
