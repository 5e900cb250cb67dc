"""Tokens, loss and images of each sample are compared with its step before a training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rl_agent.chat.context.image_tokens import ImageTokens
from rl_agent.errors import StoreError
from rl_agent.trainer.llamafactory.dataset.check import check_datasets
from rl_agent.trainer.llamafactory.dataset.export import Example, write_datasets
from rl_agent.trainer.llamafactory.dataset.select import Candidate, order_of
from rl_agent.types import EpisodeKey

PICTURE = 9
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "merge_size": 2,
    "size": {"shortest_edge": 1024, "longest_edge": 2**20},
}
IMAGE_TOKENS = ImageTokens(PROCESSOR, PICTURE)


COUNTS = {"tokens": 7, "sampled": 2, "images": 1}


def step(number: int = 3, **counts) -> Candidate:
    return Candidate(0, 2, EpisodeKey("lake", 0, 1), number, **COUNTS | counts)


def sample(tmp_path: Path, tokens=(1, *[PICTURE] * 4, 5, 6), sampled=2, images=1) -> Example:
    path = tmp_path / "screen.png"
    Image.new("RGB", (64, 64)).save(path)
    ids = np.array(tokens, np.int32)
    labels = np.where(np.arange(len(ids)) >= len(ids) - sampled, ids, -100).astype(np.int32)
    return Example(ids, labels, (str(path),) * images)


def check(tmp_path: Path, seen: Candidate, example: Example, *, mask_history: bool = True) -> None:
    folder = write_datasets(tmp_path / "update", [example], [])
    check_datasets(folder, {"train": [seen], "validation": []}, IMAGE_TOKENS, mask_history=mask_history)


@pytest.fixture(autouse=True)
def _folder(tmp_path):
    (tmp_path / "update").mkdir()


def test_a_sample_that_is_what_was_seen_is_trained_on(tmp_path):
    check(tmp_path, step(), sample(tmp_path))


@pytest.mark.parametrize(
    ("seen", "changed", "words"),
    [
        ({"tokens": 69}, {}, "has 7 tokens where the engine saw and sampled 69"),
        ({"sampled": 3}, {}, "has loss on 2 tokens where 3 were sampled"),
        ({"images": 2}, {}, "has 1 images where the engine saw 2"),
        ({}, {"tokens": (1, 4, *[PICTURE] * 3, 5, 6)}, "has 3 tokens for images of which the model makes 4"),
        ({"images": 0}, {"images": 0}, "has 4 tokens for images of which the model makes 0"),
    ],
    ids=str,
)
def test_a_sample_that_differs_is_refused_in_one_line_that_names_it(tmp_path, seen, changed, words):
    with pytest.raises(StoreError) as refused:
        check(tmp_path, step(**seen), sample(tmp_path, **changed))
    message = str(refused.value)
    assert words in message and "\n" not in message
    assert "the sample of episode lake:0:1, step 3, iteration 2" in message


def test_images_in_another_order_than_the_engine_saw_are_refused(tmp_path):
    example = sample(tmp_path, tokens=(1, *[PICTURE] * 8, 5, 6), images=2)
    other = tmp_path / "other.png"
    Image.new("RGB", (64, 64)).save(other)
    first, _ = example.images
    example = replace(example, images=(first, str(other)))
    check(tmp_path, step(tokens=11, images=2, order=order_of(example.images)), example)
    with pytest.raises(StoreError, match="other images than the engine saw, or the same in another order"):
        check(tmp_path, step(tokens=11, images=2, order=order_of(reversed(example.images))), example)


def test_a_label_that_is_not_the_token_is_refused(tmp_path):
    example = sample(tmp_path)
    example.labels[-1] = 1
    with pytest.raises(StoreError, match="labels that are not its tokens"):
        check(tmp_path, step(), example)


def test_a_sample_that_is_missing_is_refused(tmp_path):
    folder = write_datasets(tmp_path / "update", [sample(tmp_path)], [])
    with pytest.raises(StoreError, match="train has 1 samples of 2 steps"):
        check_datasets(folder, {"train": [step(), step(4)]}, IMAGE_TOKENS, mask_history=True)


def test_an_image_that_went_away_meanwhile_is_refused(tmp_path):
    example = sample(tmp_path)
    Path(example.images[0]).unlink()
    with pytest.raises(StoreError, match="an image that cannot be read"):
        check(tmp_path, step(), example)


def test_without_masked_history_earlier_responses_may_have_loss_too(tmp_path):
    example = sample(tmp_path, sampled=2)
    example.labels[0] = example.input_ids[0]
    check(tmp_path, step(), example, mask_history=False)
    with pytest.raises(StoreError, match="has loss on 3 tokens where 2 were sampled"):
        check(tmp_path, step(), example)
