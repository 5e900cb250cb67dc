"""A model folder is read as engines read it, or refused with its file's name."""

import json

import pytest

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.chat.tokenizer_files import load_tokenizer
from rl_agent.errors import ConfigError
from rl_agent.types import Observation
from tests.support.tiny_chat import CHATML, save_tiny_model_folder, tiny_chat

TURN_END_ID, END_OF_TEXT_ID = 2, 0


def test_a_folder_is_loaded_with_every_end_token_it_names(tmp_path):
    folder = save_tiny_model_folder(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))

    chat = ChatTokenizer.load(str(folder), {})

    assert chat.eos_token_ids == {TURN_END_ID, END_OF_TEXT_ID}
    assert chat.start(None, Observation("x")) == tiny_chat().start(None, Observation("x"))


def test_versions_share_a_tokenizer_until_a_file_of_it_changes(tmp_path):
    first, second = (save_tiny_model_folder(tmp_path / name) for name in ("version-1", "version-2"))
    shared = load_tokenizer(first)
    assert load_tokenizer(second) is shared
    settings = json.loads((second / "tokenizer_config.json").read_bytes())
    (second / "tokenizer_config.json").write_text(json.dumps(settings | {"pad_token": "<|new|>"}))
    assert load_tokenizer(second).token_to_id("<|new|>") is not None
    assert shared.token_to_id("<|new|>") is None


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("config.json", {"eos_token_id": 0}),
        ("config.json", {"text_config": {"eos_token_id": [0]}}),
        ("generation_config.json", {"eos_token_id": [0, 99_999]}),
    ],
)
def test_end_tokens_are_read_where_engines_read_them(name, config, tmp_path):
    folder = save_tiny_model_folder(tmp_path / "model")
    (folder / name).write_text(json.dumps(config))
    assert {TURN_END_ID, END_OF_TEXT_ID} <= ChatTokenizer.load(str(folder), {}).eos_token_ids


@pytest.mark.parametrize("listed", ["<|im_end|>", [None], True, -1])
def test_an_end_token_that_is_no_number_is_named_with_its_file(listed, tmp_path):
    folder = save_tiny_model_folder(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))
    with pytest.raises(ConfigError, match=r"generation_config\.json: eos_token_id=.*a token's number"):
        ChatTokenizer.load(str(folder), {})


def test_a_template_file_wins_over_the_one_in_the_settings(tmp_path):
    folder = save_tiny_model_folder(tmp_path / "model", template="{{ raise_exception('old') }}")
    (folder / "chat_template.jinja").write_text(CHATML)

    assert ChatTokenizer.load(str(folder), {}).start(None, Observation("x"))


@pytest.mark.parametrize("damage", ["", "{", "[]", '"text"'])
@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        *("chat_template.json", "generation_config.json", "config.json"),
    ],
)
def test_a_damaged_file_of_a_tokenizer_is_named_in_one_line(name, damage, tmp_path):
    folder = save_tiny_model_folder(tmp_path / "model")
    (folder / name).write_text(damage)
    with pytest.raises(ConfigError, match=rf"^{folder / name}: .*; (restore|save) the .*$"):
        ChatTokenizer.load(str(folder), {})


@pytest.mark.parametrize(
    "settings", [{"added_tokens_decoder": []}, {"added_tokens_decoder": {"a": 1}}, {"eos_token": {"id": 1}}]
)
def test_tokens_of_another_shape_are_refused_with_a_file(settings, tmp_path):
    folder = save_tiny_model_folder(tmp_path / "model")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=rf"^{folder}/\w+\.json: .*; save the tokenizer anew"):
        ChatTokenizer.load(str(folder), {})


def test_a_template_that_is_no_text_is_named(tmp_path):
    folder = save_tiny_model_folder(tmp_path / "model")
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja: .* restore the file"):
        ChatTokenizer.load(str(folder), {})


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        ChatTokenizer.load(str(tmp_path), {})


def test_a_model_without_a_template_is_named(tmp_path):
    folder = save_tiny_model_folder(tmp_path, template="")
    with pytest.raises(ConfigError, match="no chat template"):
        ChatTokenizer.load(str(folder), {})
