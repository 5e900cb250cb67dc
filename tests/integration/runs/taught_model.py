"""Teaches a tiny Qwen3 a few answers by heart, for runs whose agent must say something sensible."""

from collections.abc import Callable, Iterable
from pathlib import Path

Lesson = tuple[list[int], list[int]]
"""The tokens of a prompt, and those that are to be said then."""


def teach(
    folder: Path,
    lessons: Callable[[], Iterable[Lesson]],
    *,
    vocab_size: int,
    end: int,
    max_length: int,
    good_enough: float = 0.01,
    most_rounds: int = 2000,
) -> None:
    """Teach until every lesson of a round is known, and write the model's folder.

    `lessons` gives those of the next round; `end` is the token that ends a turn.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)  # steps are so small that threads only wait for each other
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # vLLM on a CPU takes no smaller one
        max_position_embeddings=max_length,
        tie_word_embeddings=False,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(most_rounds):
        worst = 0.0
        for prompt, response in lessons():
            labels = torch.tensor([[-100] * len(prompt) + response])
            loss = model(input_ids=torch.tensor([prompt + response]), labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            worst = max(worst, loss.item())
        if worst < good_enough:
            model.save_pretrained(folder)
            return
    raise AssertionError(f"it did not learn its lessons: loss {worst:.3f}")
