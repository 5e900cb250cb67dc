"""Prompts have the tokens that transformers makes of them, wherever a model's files name its tokens."""

import json

import pytest

from rl_agent.chat.chat import ChatTokenizer
from rl_agent.errors import ConfigError
from rl_agent.types import Observation
from tests.support.tiny_chat import CHATML, SPECIAL, save_tiny_model_folder, tiny_tokenizer
from tests.unit.chat.thinking_templates import THINKING
from tests.unit.chat.tool_templates import OF_FORMAT

FREE = tiny_tokenizer().get_vocab_size()
"""The first id that no token has."""
DECODER = "added_tokens_decoder"
TEXT = "Is <think>b</think> or <x> or <y>\n<pad> right?"


def token(content, *, special=False, **flags):
    return {"content": content, "special": special, "normalized": False} | flags


def numbered(*tokens, first=FREE):
    own = {str(index): token(text, special=True) for index, text in enumerate(SPECIAL)}
    return {DECODER: own | {str(first + index): entry for index, entry in enumerate(tokens)}}


FILES = {
    "none beside": {},
    "the older of two is not read": {
        "tokenizer_config.json": numbered(token("<x>")),
        "added_tokens.json": {"<y>": FREE},
    },
    "thoughts": {"tokenizer_config.json": numbered(token("<think>"), token("</think>"))},
    "a token that takes the blanks around it": {
        "tokenizer_config.json": numbered(token("<x>", lstrip=True, rstrip=True), token("<y>", special=True))
    },
    "a token that was there": {
        "tokenizer_config.json": numbered(token("a"), first=tiny_tokenizer().token_to_id("a"))
    },
    "named": {"tokenizer_config.json": {"pad_token": "<pad>", "additional_special_tokens": ["<x>"]}},
    "named with a number": {
        "tokenizer_config.json": numbered(token("<pad>"), token("<x>")) | {"pad_token": "<pad>"}
    },
    "named as objects": {
        "tokenizer_config.json": {"pad_token": {"content": "<pad>", "__type": "AddedToken"}}
    },
    "more of them": {"tokenizer_config.json": {"extra_special_tokens": ["<y>", "<x>"]}},
    "more of them by name": {"tokenizer_config.json": {"extra_special_tokens": {"x_token": "<x>"}}},
    "older files": {
        "special_tokens_map.json": {"pad_token": "<pad>", "additional_special_tokens": ["<x>"]},
        "added_tokens.json": {"<y>": FREE, "<x>": FREE + 1},
    },
}


def folder_of(tmp_path, template, files):
    folder = save_tiny_model_folder(tmp_path / "model", template)
    for name, content in files.items():
        path = folder / name
        known = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(known | content))
    return folder


def assert_same(folder, text):
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(folder), ChatTokenizer.load(str(folder), {})
    messages = [{"role": "user", "content": text}]
    wanted = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.encode_messages(messages) == wanted
    assert ours.decode(wanted) == theirs.decode(wanted, skip_special_tokens=False)


@pytest.mark.parametrize("name", FILES)
def test_tokens_beside_the_tokenizer_are_those_of_transformers(name, tmp_path):
    assert_same(folder_of(tmp_path, CHATML, FILES[name]), TEXT)


@pytest.mark.parametrize("name", [*THINKING, *OF_FORMAT])
def test_a_chat_template_gives_the_tokens_of_transformers(name, tmp_path):
    template = OF_FORMAT.get(name) or THINKING[name].template
    thoughts = {"tokenizer_config.json": numbered(token("<think>"), token("</think>"))}
    folder = folder_of(tmp_path, template, thoughts)
    assert_same(folder, "What is 12 + 30?")
    chat = ChatTokenizer.load(str(folder), {})
    assert chat.start(None, Observation("12 + 30?")).count(FREE) == template.count("<think>")


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": numbered(token("<x>"), first=FREE + 5)},
        {"tokenizer_config.json": numbered(token("<x>"), first=10)},
        {"added_tokens.json": {"<x>": 7}},
    ],
    ids=["behind a gap", "in another's place", "in an older file"],
)
def test_a_token_that_transformers_would_give_another_number_is_refused(files, tmp_path):
    folder = folder_of(tmp_path, CHATML, files)
    with pytest.raises(ConfigError, match=r"'<x>' is token \d+ by the files beside it and 259"):
        ChatTokenizer.load(str(folder), {})
