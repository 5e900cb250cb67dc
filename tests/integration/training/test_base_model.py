"""The base model's tokenizer, chat template and teaching, without teaching it."""

import ast
import json
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rl_agent.paths import PROJECT_ROOT

sys.path.insert(0, str(PROJECT_ROOT / "data"))

import teach_base_model
import tiny_tokenizer

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "12 + 34 ="},
    {"role": "assistant", "content": "46"},
    {"role": "user", "content": "And\n\n 7 - 9 ="},
    {"role": "assistant", "content": " -2\n"},
]


@pytest.fixture(scope="module")
def tokenizer():
    return teach_base_model.make_tokenizer()


def render(messages: list[dict], *, add_generation_prompt: bool = False) -> str:
    import jinja2

    template = jinja2.Environment().from_string(tiny_tokenizer.CHAT_TEMPLATE)
    return template.render(messages=messages, add_generation_prompt=add_generation_prompt)


def llamafactory_slots() -> dict[str, str]:
    """The text slots of the `qwen3_nothink` template, read from LLaMA-Factory's source without running it."""
    package = Path(find_spec("llamafactory").submodule_search_locations[0])
    tree = ast.parse((package / "data" / "template.py").read_text(encoding="utf-8"))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        arguments = {keyword.arg: keyword.value for keyword in call.keywords}
        name = arguments.get("name")
        if isinstance(name, ast.Constant) and name.value == "qwen3_nothink":
            assert "default_system" not in arguments
            roles = ("system", "user", "assistant")
            slots = {role: ast.literal_eval(arguments[f"format_{role}"].keywords[0].value) for role in roles}
            return {role: slot for role, (slot,) in slots.items()}
    raise AssertionError("LLaMA-Factory has no template qwen3_nothink")


def llamafactory_pieces(messages: list[dict]) -> list[str]:
    """Tokens that LLaMA-Factory makes one by one."""
    slots = llamafactory_slots()
    return [slots[message["role"]].replace("{{content}}", message["content"]) for message in messages]


@pytest.mark.parametrize(
    "text", ["12 + 34 =", "naïve 漢字 🙂\t\r\n\n  x", "<|im_start|>user\n1<|im_end|>\n", ""]
)
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_every_digit_is_a_token_and_every_mark_of_a_turn_is_one(tokenizer):
    tokens = tokenizer.encode(tiny_tokenizer.prompt_text("90 - 17 =")).tokens
    assert [token for token in tokens if token.isdigit()] == ["9", "0", "1", "7"]
    assert [token for token in tokens if "|" in token] == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
    assert tokenizer.get_vocab_size() == tiny_tokenizer.VOCAB_SIZE


def test_a_conversation_has_the_same_ids_in_llamafactorys_pieces(tokenizer):
    pieces = llamafactory_pieces(TURNS)
    whole = render(TURNS)
    assert "".join(pieces) == whole
    joined = [token for piece in pieces for token in tokenizer.encode(piece).ids]
    assert joined == tokenizer.encode(whole).ids


def test_teaching_speaks_the_chat_templates_format():
    prompt = render(TURNS[1:2], add_generation_prompt=True)
    assert tiny_tokenizer.prompt_text("12 + 34 =") == prompt
    assert prompt + tiny_tokenizer.response_text("46") == render(TURNS[1:3])


def test_the_same_texts_give_the_same_tokenizer(tokenizer):
    assert teach_base_model.make_tokenizer().to_str() == tokenizer.to_str()


def test_the_saved_tokenizer_ends_a_response_at_the_end_of_the_turn(tokenizer, tmp_path):
    tiny_tokenizer.save_tokenizer(tokenizer, tmp_path, max_length=64)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|im_end|>" and settings["pad_token"] == "<|endoftext|>"
    assert (tmp_path / "chat_template.jinja").read_text() == settings["chat_template"]


def test_the_recipe_makes_1_to_5_million_parameters_and_an_untied_head(tokenizer):
    model = teach_base_model.new_model(teach_base_model.Recipe(seed=0), tokenizer)
    assert 1_000_000 <= sum(p.numel() for p in model.parameters()) <= 5_000_000
    assert model.lm_head.weight is not model.model.embed_tokens.weight


def test_a_tiny_model_learns_one_answer_by_heart_and_is_published_whole(tokenizer, tmp_path):
    recipe = teach_base_model.Recipe(
        seed=0, hidden_size=32, intermediate_size=32, layers=1, heads=1, kv_heads=1, batch_size=4,
        problems=4, validation_problems=1, check_every=1, target_accuracy=1.0, warmup_steps=1, max_steps=60,
    )  # fmt: skip
    lessons = teach_base_model.encode(tokenizer, [{"prompt": "1 + 2 =", "answer": "3"}] * 4)
    model = teach_base_model.new_model(recipe, tokenizer)
    assert teach_base_model.accuracy(model, lessons) == 0.0
    checks = []
    assert teach_base_model.teach(model, lessons, recipe, lambda *check: checks.append(check)) == 1.0
    assert teach_base_model.accuracy(model, lessons) == 1.0

    out = tmp_path / "model"
    teach_base_model.save(model, tokenizer, out, {"digest": recipe.digest()})
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in out.iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert teach_base_model.is_taught(out, recipe.digest())
    assert not teach_base_model.is_taught(out, replace(recipe, seed=1).digest())


def test_a_folder_that_holds_something_else_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SystemExit, match="is not a model taught here"):
        teach_base_model.is_taught(tmp_path, "any")


def test_words_make_no_other_model_and_a_rule_of_the_lessons_does(tmp_path):
    source = Path(teach_base_model.__file__).with_name("make_tasks.py").read_text()
    module = tmp_path / "make_tasks.py"

    def code_of(text: str) -> str:
        module.write_text(text)
        return teach_base_model.deciding_code(module)

    before = code_of(source)
    assert code_of(source.replace('help="which tasks,', 'help="of which kind the tasks are,')) == before
    assert code_of(source.replace("; the file is complete or absent", "")) == before
    assert code_of(source.replace("DRAWS_PER_TASK = 200", "DRAWS_PER_TASK = 100")) != before


def test_the_shipped_model_is_of_this_very_recipe_and_code_and_small(tokenizer, tmp_path, capsys):
    recipe = teach_base_model.Recipe(seed=0)
    assert teach_base_model.shipped_teaching(recipe), "make it anew: data/teach_base_model.py --ship"
    assert sum(path.stat().st_size for path in teach_base_model.SHIPPED.iterdir()) < 3_000_000

    teach_base_model.main(["--out", str(tmp_path / "model")])

    assert "teaching" not in capsys.readouterr().out
    taken = load_file(tmp_path / "model" / "model.safetensors")
    shipped = load_file(teach_base_model.SHIPPED / "model.safetensors")
    assert taken.keys() == shipped.keys()
    for name, tensor in taken.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, shipped[name].float())


def test_a_shipped_model_whose_bytes_changed_is_refused(tmp_path, monkeypatch):
    damaged = tmp_path / "base_model"
    shutil.copytree(teach_base_model.SHIPPED, damaged)
    with (damaged / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    monkeypatch.setattr(teach_base_model, "SHIPPED", damaged)
    with pytest.raises(SystemExit, match="is damaged"):
        teach_base_model.main(["--out", str(tmp_path / "model")])


@pytest.mark.extended
@pytest.mark.timeout(1800)
def test_taught_again_the_shipped_model_answers_as_many_sums(tmp_path, monkeypatch):
    before = teach_base_model.shipped_teaching(teach_base_model.Recipe(seed=0))
    monkeypatch.setattr(teach_base_model, "SHIPPED", tmp_path / "base_model")
    teach_base_model.main(["--ship"])
    again = teach_base_model.shipped_teaching(teach_base_model.Recipe(seed=0))
    assert again["recipe"] == before["recipe"] and again["parameters"] == before["parameters"]
    assert abs(again["test_accuracy"] - before["test_accuracy"]) < 0.1  # processors add up in other orders
