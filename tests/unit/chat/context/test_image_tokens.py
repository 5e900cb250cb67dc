"""Tokens of an image are counted as transformers' processor makes them, or as an engine said."""

import json

import pytest

from rl_agent.chat.context.image_tokens import ImageTokens, qwen_tokens

QWEN3 = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 16,
    "merge_size": 2,
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
}
"""Settings of Qwen3-VL-8B's preprocessor_config.json."""
SIZES = [(1280, 768), (1, 1), (17, 31), (4096, 4096), (9000, 100), (100, 9000), (332, 214), (1920, 1080)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "settings",
    [QWEN3, QWEN3 | {"patch_size": 14}, QWEN3 | {"size": {"shortest_edge": 1024, "longest_edge": 4096}}],
)
def test_the_arithmetic_is_that_of_the_processor(size, settings):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    factor = settings["patch_size"] * 2
    bounds = settings["size"]
    width, height = size
    down, across = smart_resize(height, width, factor, bounds["shortest_edge"], bounds["longest_edge"])
    assert qwen_tokens(size, settings) == down * across // factor**2


def test_a_screenshot_of_webgym_takes_960_tokens_in_qwen3_vl():
    assert ImageTokens(QWEN3).of((1280, 768)) == 960


def test_images_refused_or_unknown_to_the_processor_have_no_number():
    assert ImageTokens(QWEN3).of((9001, 45)) is None
    assert ImageTokens({"image_processor_type": "PixtralImageProcessor"}).of((64, 64)) is None
    assert ImageTokens().total([(64, 64)]) is None
    assert ImageTokens().total([]) == 0


def test_an_engine_teaches_what_a_size_takes():
    tokens = ImageTokens(image_token=9)
    tokens.learn([(64, 64), (32, 32)], [1, 7, 9, 9, 9, 8, 2, 7, 9, 8, 3])
    assert (tokens.of((64, 64)), tokens.of((32, 32))) == (3, 1)
    assert tokens.total([(64, 64), (64, 64), (32, 32)]) == 7


def test_an_engines_measure_counts_more_than_its_processors():
    tokens = ImageTokens(QWEN3, image_token=9)
    tokens.learn([(1280, 768)], [9] * 240)  # an engine with a smaller limit
    assert tokens.of((1280, 768)) == 240


def test_a_prompt_whose_images_cannot_be_told_apart_teaches_nothing():
    tokens = ImageTokens(image_token=9)
    tokens.learn([(64, 64), (32, 32)], [9, 9, 9, 9])
    ImageTokens().learn([(64, 64)], [9])
    assert tokens.of((64, 64)) is None


@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_the_settings_are_read_from_either_file_of_a_model(tmp_path, name):
    own = (
        QWEN3 if name.startswith("pre") else {"image_processor": QWEN3, "processor_class": "Qwen3VLProcessor"}
    )
    (tmp_path / name).write_text(json.dumps(own))
    (tmp_path / "config.json").write_text(json.dumps({"image_token_id": 151655}))
    tokens = ImageTokens.load(tmp_path)
    assert (tokens.of((1280, 768)), tokens.image_token) == (960, 151655)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"image_processor": null}'])
def test_a_folder_without_usable_settings_has_everything_to_be_learned(tmp_path, content):
    (tmp_path / "processor_config.json").write_bytes(content)
    assert ImageTokens.load(tmp_path).of((64, 64)) is None
