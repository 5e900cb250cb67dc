"""Compares the samples that LLaMA-Factory will load with what the trajectories say was seen and sampled.

The counts come from the outcomes by which the steps were chosen, not from the export: two readings of the
same files that must agree. A difference is refused, never trained on.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_agent.chat.context.image_tokens import ImageTokens
from rl_agent.errors import StoreError
from rl_agent.rollout.trajectories.images import image_size
from rl_agent.trainer.llamafactory.dataset.export import IGNORED
from rl_agent.trainer.llamafactory.dataset.select import Candidate, order_of


def check_datasets(
    folder: Path,
    parts: Mapping[str, Collection[Candidate]],
    image_tokens: ImageTokens,
    *,
    mask_history: bool,
) -> None:
    """Compare each part of a written dataset with its steps, in order. Raises StoreError for a difference.

    `image_tokens` are those of the model that is trained.
    """
    from datasets import load_from_disk

    written = load_from_disk(str(folder))
    for name, steps in parts.items():
        rows = written.get(name, [])
        if len(rows) != len(steps):
            raise StoreError(
                f"{folder}: {name} has {len(rows)} samples of {len(steps)} steps: not trained on"
            )
        for step, row in zip(steps, rows, strict=True):
            if problem := _difference(step, row, image_tokens, mask_history=mask_history):
                place = f"step {step.step}" if step.step >= 0 else f"summary before step {~step.step}"
                raise StoreError(
                    f"{folder}: the sample of episode {step.key}, {place}, iteration"
                    f" {step.iteration} {problem}: not trained on; `trajectories verify` checks the files it"
                    " was made of"
                )


def _difference(
    step: Candidate, row: dict[str, Any], image_tokens: ImageTokens, *, mask_history: bool
) -> str:
    """Return in words how a sample differs from what was seen at its step; empty if it does not."""
    tokens, labels = row["input_ids"], row["labels"]
    if len(tokens) != step.tokens:
        return f"has {len(tokens)} tokens where the engine saw and sampled {step.tokens}"
    if len(labels) != len(tokens) or any(
        label not in (IGNORED, token) for label, token in zip(labels, tokens, strict=True)
    ):
        return "has labels that are not its tokens"
    trained = sum(label != IGNORED for label in labels)
    if trained != step.sampled if mask_history else trained < step.sampled:
        return f"has loss on {trained} tokens where {step.sampled} were sampled"
    images = row.get("images") or []
    if len(images) != step.images:
        return f"has {len(images)} images where the engine saw {step.images}"
    if step.order is not None and order_of(images) != step.order:
        return "has other images than the engine saw, or the same in another order"
    return _difference_of_images(tokens, images, image_tokens)


def _difference_of_images(tokens: Sequence[int], images: Sequence[str], image_tokens: ImageTokens) -> str:
    if image_tokens.image_token is None:
        return ""
    sizes = [size for path in images if (size := image_size(path)) is not None]
    if len(sizes) < len(images):
        return "names an image that cannot be read"
    expected, count = image_tokens.total(sizes), tokens.count(image_tokens.image_token)
    if expected is not None and expected != count:
        return f"has {count} tokens for images of which the model makes {expected}"
    return ""
