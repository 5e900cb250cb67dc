"""A base model that the run cannot take is refused by its key."""

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rl_agent.config.plan import Command
from rl_agent.errors import ConfigError
from rl_agent.plan.hub import FoundModel
from rl_agent.plan.model import (
    check_chat,
    check_model,
    check_serving,
    obstacle_of_images,
)
from tests.support.tiny_chat import CHATML, END_OF_TEXT, TURN_END, save_tiny_model_folder
from tests.unit.chat.thinking_templates import CHATML_SPARED, CHATML_THINKING, COMMAND_A, GPT_OSS, MISTRAL
from tests.unit.config.overrides.test_compose import compose
from tests.unit.plan.test_checks import BOTH, GROUPS_OF_8, POOL

THOUGHTS = ((1, "<think>"), (2, "</think>"))


QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}


VISION = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"]}


FP8 = QWEN3 | {"quantization_config": {"quant_method": "fp8"}}


FILES = frozenset({"config.json", "model.safetensors"})


EXPERTS_THAT_SEE = {"model_type": "qwen3_5_moe", "vision_config": {}}


def checked(words, model_config, files=FILES, **changes):
    config = compose(*words).config
    model = FoundModel("org/model", None, model_config, files)
    return check_model(config, Command.model_validate(BOTH | changes), model)


@pytest.mark.parametrize(
    ("words", "model_config", "files", "told"),
    [
        (
            ("trainer=grpo", "model=qwen3-instruct"),
            VISION | {"model_type": "idefics3"},
            FILES,
            r"Qwen3-VL-8B-Instruct: is a .*, and trainer=grpo trains text models and qwen2_vl",
        ),
        ((), FP8, FILES, r"is quantized \(fp8\), and trainer=grpo trains bf16"),
        ((), QWEN3, frozenset({"pytorch_model.bin"}), r"as \*\.bin, and trainer=grpo reads safetensors"),
        (("weights=inplace",), FP8, FILES, r"is quantized \(fp8\), and vLLM may load weights wrongly"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_by_its_key(words, model_config, files, told):
    words = words or ("trainer=grpo", GROUPS_OF_8, POOL)
    with pytest.raises(ConfigError, match=rf"^model_config\.base_model=.*{told}") as refusal:
        checked(words, model_config, files)
    assert "\n" not in str(refusal.value)


LONG_ROPE = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "rope_scaling": {"type": "longrope"}}
LONG_ROPE |= {"original_max_position_embeddings": 4096, "max_position_embeddings": 131072}


POSITIONS = {"max_position_embeddings": 8192}


def served(words, model_config):
    config = compose("model_config.base_model=org/model", *words).config
    check_serving(config, FoundModel("org/model", None, model_config, FILES), {})


@pytest.mark.parametrize("model_config", [POSITIONS, {"text_config": POSITIONS}], ids=["text", "vision"])
def test_a_context_longer_than_the_models_is_refused_with_its_length(model_config):
    told = r"engine\.max_model_len=9000: org/model has 8192 positions; set engine\.max_model_len=8192"
    with pytest.raises(ConfigError, match=told):
        served(("engine.max_model_len=9000",), model_config)


@pytest.mark.parametrize(
    ("length", "words", "model_config"),
    [
        (8192, (), POSITIONS | {"rope_scaling": None}),
        (9000, (), POSITIONS | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        (9000, ("+engine.extra_args.hf-overrides={rope_scaling: {}}",), POSITIONS),
        (9000, ("+engine.extra_args.hf_overrides={rope_scaling: {}}",), POSITIONS),
        (9000, ("+engine.extra_env.VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",), POSITIONS),
        (9000, (), POSITIONS | {"model_max_length": 131_072}),
        (9000, (), None),
    ],
    ids=["as long", "stretched", "by a flag", "by a flag of Python's", "allowed", "of Cohere", "unknown"],
)
def test_a_context_that_may_fit_the_model_is_left_to_vllm(length, words, model_config):
    served((f"engine.max_model_len={length}", *words), model_config)


@pytest.mark.parametrize("trainer", [("trainer=llamafactory",), ("trainer=grpo", GROUPS_OF_8, POOL)])
def test_a_context_that_makes_vllm_rotate_otherwise_is_refused(trainer):
    with pytest.raises(
        ConfigError, match=r"^engine\.max_model_len=8192: .*; set engine\.max_model_len=4096$"
    ):
        checked((*trainer, "engine.max_model_len=8192"), LONG_ROPE)
    assert checked((*trainer, "engine.max_model_len=4096"), LONG_ROPE) == ()
    assert checked((*trainer, "engine.max_model_len=8192"), LONG_ROPE, rl_phase="rollout") == ()


def test_a_model_is_looked_at_by_what_is_done_with_it():
    grpo = ("trainer=grpo", GROUPS_OF_8, POOL)
    assert checked(grpo, QWEN3) == ()
    assert checked(grpo, VISION, rl_phase="rollout") == ()
    assert checked(grpo, VISION, rl_phase="rollout", join=True) == ()
    assert checked(("trainer=llamafactory",), VISION) == ()
    assert checked(("weights=inplace",), VISION) == ()


@pytest.mark.parametrize(
    ("words", "model_config", "told"),
    [
        (
            ("model_config.template=qwen4",),
            QWEN3,
            "^model_config.template=qwen4: LLaMA-Factory has no template",
        ),
        ((), {"model_type": "new", "vision_config": {}}, "^model_config.template: set the template by which"),
    ],
)
def test_a_template_that_cannot_train_the_model_is_refused_where_it_trains(words, model_config, told):
    with pytest.raises(ConfigError, match=told):
        checked(("trainer=llamafactory", *words), model_config)
    assert checked(("trainer=llamafactory", *words), model_config, rl_phase="rollout") == ()


def test_a_model_that_the_hub_tells_nothing_of_is_noted():
    (note,) = checked(("trainer=grpo", GROUPS_OF_8, POOL), None, frozenset())
    assert "nothing is known of it yet; whether trainer=grpo can take it is seen after the download" in note
    assert checked(("trainer=llamafactory",), None, frozenset()) == ()


def check_parser(folder, tokens, *words):
    if tokens is not None:
        vocabulary = {token: index for index, token in enumerate(["a", *tokens])}
        Tokenizer(WordLevel(vocabulary, unk_token="a")).save(str(folder / "tokenizer.json"))
    check_serving(compose(*words).config, FoundModel(str(folder), folder, QWEN3, FILES), {})


@pytest.mark.parametrize(
    ("tokens", "lacking"),
    [((), "<think> and no </think>"), (("<think>",), "</think>"), (("</think>",), "<think>")],
)
def test_a_thought_parser_is_refused_if_the_model_lacks_its_tokens(tokens, lacking, tmp_path):
    with pytest.raises(
        ConfigError, match=rf"^model_config\.reasoning_parser=deepseek_r1: .* has no token {lacking};"
    ):
        check_parser(tmp_path, tokens, "model_config.model_type=qwen3-think")


@pytest.mark.parametrize(
    ("tokens", "word"),
    [
        (("<think>", "</think>"), "model_config.model_type=qwen3-think"),
        (("<mm:think>", "</mm:think>"), "model_config.reasoning_parser=minimax_m3"),
        ((), "model_config.model_type=qwen3-instruct"),
        ((), "model_config.reasoning_parser=qwen3"),
        (None, "model_config.model_type=qwen3-think"),
    ],
)
def test_a_parser_with_present_or_unknown_tokens_is_left_to_the_engine(tokens, word, tmp_path):
    check_parser(tmp_path, tokens, word)


def test_an_unreadable_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/tokenizer\.json: .*; save the tokenizer anew"):
        check_parser(tmp_path, None, "model_config.model_type=qwen3-think")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": {str(n): {"content": t} for n, t in THOUGHTS}}),
        ("added_tokens.json", {t: n for n, t in THOUGHTS}),
    ],
)
def test_tokens_that_lie_beside_the_tokenizer_are_tokens_of_the_model(name, content, tmp_path):
    (tmp_path / name).write_text(json.dumps(content))
    check_parser(tmp_path, (), "model_config.model_type=qwen3-think")


def notes_of(folder, phase="both"):
    model = FoundModel(str(folder), folder, QWEN3, FILES)
    return check_chat(compose().config, Command.model_validate(BOTH | {"rl_phase": phase}), model)


def notes_on(folder, template, phase="both"):
    return notes_of(save_tiny_model_folder(folder, template), phase)


def test_a_template_that_opens_a_thought_is_noted(tmp_path):
    (note,) = notes_on(tmp_path, CHATML_THINKING)
    assert note.endswith(
        ": its prompts begin a thought; a response without </think> has no answer and no tool call"
    )
    assert notes_on(tmp_path, CHATML_THINKING, phase="update") == ()


@pytest.mark.parametrize("template", [CHATML, CHATML_SPARED, GPT_OSS, COMMAND_A, MISTRAL])
def test_a_template_whose_prompts_open_nothing_needs_no_note_on_it(template, tmp_path):
    assert not [note for note in notes_on(tmp_path, template) if "prompts begin" in note]


@pytest.mark.parametrize(
    ("template", "eos_token", "note"),
    [
        (CHATML, END_OF_TEXT, "its turns end with <|im_end|>, not an eos token of it"),
        (CHATML.replace("<|im_end|>", "--"), TURN_END, "its chat template puts no token after a response"),
    ],
)
def test_a_template_whose_turns_end_with_no_eos_token_is_noted(template, eos_token, note, tmp_path):
    save_tiny_model_folder(tmp_path, template)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": eos_token}))
    assert note in notes_of(tmp_path)[0]


@pytest.mark.parametrize(
    ("words", "model_config", "phase", "told"),
    [
        (
            ("trainer=grpo", GROUPS_OF_8),
            EXPERTS_THAT_SEE,
            "both",
            "trains the text part of qwen3_5_moe alone",
        ),
        (("trainer=grpo", GROUPS_OF_8), VISION | {"vision_config": {}}, "both", ""),
        (("trainer=grpo", GROUPS_OF_8), EXPERTS_THAT_SEE, "rollout", ""),
        (("trainer=grpo", GROUPS_OF_8), QWEN3, "both", ""),
        ((), EXPERTS_THAT_SEE, "both", ""),
    ],
)
def test_images_are_refused_where_the_text_part_alone_is_trained(words, model_config, phase, told):
    command = Command.model_validate(BOTH | {"rl_phase": phase})
    model = FoundModel("org/model", None, model_config, FILES)
    obstacle = obstacle_of_images(compose(*words).config, command, model)
    assert told in obstacle and bool(told) == bool(obstacle)


@pytest.mark.parametrize(("model_config", "is_noted"), [(QWEN3, True), (VISION, False)])
def test_a_tower_to_be_trained_is_noted_where_there_is_none(model_config, is_noted):
    words = ("trainer=grpo", GROUPS_OF_8, POOL, "trainer.freeze_vision_tower=false")
    notes = checked(words, model_config)
    assert [note.startswith("trainer.freeze_vision_tower=false changes nothing: ") for note in notes] == [
        True
    ] * is_noted
