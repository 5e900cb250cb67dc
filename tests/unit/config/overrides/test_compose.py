"""Override words become a checked configuration."""

from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rl_agent.config.overrides.keys import valid_keys
from rl_agent.config.overrides.words import parse_override
from rl_agent.errors import HarnessError
from rl_agent.plan.compose import compose_config

LOG_PATH = Path('/tmp/it\'s a "log" ${path}; é')


def compose(*words, num_gpus=0):
    overrides = [parse_override(word, "the command line") for word in words]
    return compose_config(overrides, data_path=Path("/data"), log_path=LOG_PATH, num_gpus=num_gpus)


def test_defaults_compose_and_paths_keep_every_character():
    config = compose().config
    assert config.log_path == LOG_PATH
    assert config.run_name == LOG_PATH.name


def test_without_a_gpu_the_cpu_groups_are_taken_with_a_note():
    composed = compose()
    assert composed.config.engine.device == "cpu"
    assert composed.config.trainer.use_cpu is True
    assert composed.notes == ("no GPU is visible: engine=cpu trainer=llamafactory_cpu",)


def test_with_a_gpu_the_gpu_groups_stay():
    composed = compose(num_gpus=8)
    assert composed.config.engine.device == "gpu"
    assert composed.notes == ()


def test_a_group_the_user_chose_is_never_replaced():
    composed = compose("engine=gpu", "trainer=llamafactory")
    assert composed.config.engine.device == "gpu"
    assert composed.notes == ()


ACCEPTED = {
    "number": ("engine.port=9000", "engine.port", 9000),
    "dict, merged with the defaults": (
        "env_config.train_difficulty_max_steps={easy:5,medium:6}",
        "env_config.train_difficulty_max_steps",
        {"easy": 5, "medium": 6, "hard": 30},
    ),
    "digits for a string": ("run_name=007", "run_name", "007"),
    "number-like string": ("run_name=1e3", "run_name", "1e3"),
    "boolean for a string": ("run_name=true", "run_name", "true"),
    "text": ("run_name=x;$(cmd) 'q' \"p\"\n${", "run_name", "x;$(cmd) 'q' \"p\"\n${"),
    "interpolation": ("run_name=s${seed}", "run_name", "s0"),
    "new entry of a free-form key": ("engine.extra_env.A=b c", "engine.extra_env", None),
    "the same with plus": ("+engine.extra_env.A=b c", "engine.extra_env", None),
    "model type takes its group along": (
        "model_config.model_type=qwen3-think",
        "model.base_model",
        "Qwen/Qwen3-VL-8B-Thinking",
    ),
    "short group name": ("model=qwen3-think", "model.reasoning_parser", "deepseek_r1"),
    "a key that only the schema mentions": (
        "openai_config.evaluation.max_tokens=5", "openai_config.evaluation.max_tokens", 5,
    ),
    "plus on a key that exists": ("+seed=7", "seed", 7),
    "null": ("policy_config.system_prompt=null", "policy_config.system_prompt", None),
}  # fmt: skip


@pytest.mark.parametrize(("word", "key", "expected"), ACCEPTED.values(), ids=ACCEPTED)
def test_overrides_reach_the_configuration(word, key, expected):
    composed = compose(word).config
    for part in key.split("."):
        composed = getattr(composed, part)
    if key == "engine.extra_env":
        assert composed["A"] == "b c"
    else:
        assert composed == expected


def test_a_long_text_is_read_at_once():
    prompt = "Be brief, [x] {y} 'z'. " * 1000
    config = compose(
        f"policy_config.system_prompt={prompt}",
        'pool.allowed_hosts=["a", "h${seed}"]',
    ).config
    assert config.policy_config.system_prompt == prompt
    assert config.pool.allowed_hosts == ("a", "h0")


def test_a_list_too_long_for_hydras_parser_is_refused_in_one_line():
    with pytest.raises(HarnessError, match="has at most 4096 characters"):
        compose("env_config.module_folders=[" + ",".join(f"a{n}" for n in range(20_000)) + "]")


REFUSED = {
    "engine.prot=1": "no key engine.prot; did you mean engine.port",
    "trainer/recipe=gspo": "recipes are of the streaming trainer; add trainer=grpo",
    "trainer/recipe=gsp": "trainer/recipe is one of .*; did you mean gspo",
    "recipe=gspo": "no key recipe; did you mean trainer/recipe",
    "trainer.recipe=gspo": "no key trainer.recipe; did you mean trainer/recipe",
    "temperature=1": "that is policy_config.temperature here",
    "num_generations=8": "there is no key num_generations; that is rollout.group_size here",
    "orchestrator.batch_size=128": "that is env_config.train_tasks_rollout_size here",
    "data.train_batch_size=1024": "that is env_config.train_tasks_rollout_size here",
    "+surprise=1": "no key surprise",
    "~surprise": "no key surprise",
    "~seed": "a key cannot be deleted",
    "~engine": "engine.max_model_len is missing",
    "experiment=quickstart": "added with \\+experiment",
    "model@elsewhere=qwen3-think": "no key model@elsewhere",
    "engine=tpu": "engine is one of cpu, gpu",
    "engine={prot:1}": "no key engine.prot; did you mean engine.port",
    "engine.port=a\nb": r"engine.port=a\\nb: expected",
    "engine.port=abc": "engine.port=abc: expected",
    "engine.port=99999": "engine.port=99999: expected",
    "seed=1,2": "seed=1,2: expected a valid integer",
    "rollout.reward=luck": "rollout.reward=luck: expected 'rule' or 'judge'",
    "model_config.model_type=qwen-instruct": "expected 'qwen3-instruct', .*; did you mean qwen3-instruct?",
    "model_config.model_type=qwen-think": "did you mean qwen3-think?",
    "model=qwen-instruct": "model is one of .*; did you mean qwen3-instruct?",
    "env_config={a:1}": "no key env_config.a",
    "run_name=${nowhere}": "nowhere",
    "hydra.run.dir=x": "no key hydra.run.dir",
    "cluster.lease_s=3": "cluster.lease_s=3: expected at least five times cluster.heartbeat_s, 10$",
    "cluster.heartbeat_s=9": "cluster.lease_s=30.0: expected at least five times cluster.heartbeat_s, 45$",
    "seed=5000000000": "seed=5000000000: expected less than or equal to 2147483647",
    "trainer.learning_rate=inf": "trainer.learning_rate=inf: expected a finite number",
    "policy_config.temperature=nan": "policy_config.temperature=nan: expected a finite number",
    "engine.extra_args.x=inf": "engine.extra_args.x: inf is not JSON; use a number",
    "engine.dtype=bf16": "engine.dtype=bf16: expected 'auto', .*; did you mean bfloat16",
    "wandb.mode=[1": "wandb.mode=\\[1: expected",
}


@pytest.mark.parametrize("word", REFUSED)
def test_words_that_fit_nowhere_are_one_line_with_the_way_out(word):
    with pytest.raises(HarnessError, match=REFUSED[word]) as raised:
        compose(word)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code in (2, 78)


@settings(max_examples=settings.default.max_examples // 3, phases=[Phase.explicit, Phase.generate])
@given(
    st.sampled_from(["", "+", "++", "~"]),
    st.sampled_from([*valid_keys(), "engine.prot", "model", "engine@x", "a.b"]),
    st.text(max_size=12),
)
def test_any_word_composes_or_ends_in_one_line(prefix, key, value):
    try:
        compose(f"{prefix}{key}={value}")
    except HarnessError as error:
        assert len(str(error).splitlines()) == 1


def test_a_key_that_is_set_twice_is_an_error_that_names_both_words():
    words = [parse_override("seed=1", "HYDRA_OVERRIDES"), parse_override("+seed=2", "the command line")]
    with pytest.raises(HarnessError, match=r"'seed=1' .HYDRA_OVERRIDES. and .*seed=2"):
        compose_config(words, data_path=Path("/data"), log_path=LOG_PATH, num_gpus=0)


def test_an_entry_of_a_free_form_key_can_be_deleted_if_it_is_set():
    kept = compose("+experiment=quickstart_grpo", "~engine.extra_args.kv-cache-memory-bytes").config
    assert "kv-cache-memory-bytes" not in kept.engine.extra_args
    with pytest.raises(HarnessError, match="is not set; leave the word out"):
        compose("~engine.extra_args.x")


def test_the_trainer_is_a_choice_of_kinds():
    config = compose("trainer=grpo", "policy_config.temperature=0.7", "trainer.loss.correction=none").config
    assert config.grpo.loss.temperature == 0.7
    assert config.grpo.optimizer.learning_rate == 1e-6
    with pytest.raises(HarnessError, match="an update phase needs trainer=llamafactory"):
        _ = config.llamafactory


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("trainer=grpo", "trainer.per_device_train_batch_size=1"),
            "batch_size where trainer.kind is grpo; that is trainer.batch.token_budget here",
        ),
        (("trainer=grpo", "trainer.loss.clip_low=x"), "trainer.loss.clip_low=x: expected a valid number"),
        (("trainer=grpo", "trainer.lora.targets=[lm_head]"), r"targets=\[lm_head\]: must be all-linear"),
        (
            ("trainer=grpo", "trainer.lora.targets=lm_head"),
            "trainer.lora.targets=lm_head: expected 'all-linear'",
        ),
        (("trainer.loss.clip_low=1",), "no key trainer.loss where trainer.kind is llamafactory"),
        (("trainer=grpo", "trainer.loss.temperature=0.5"), "temperature=0.5: must be 1: engines report"),
        (("trainer=grpo_gpu",), "trainer is one of grpo, grpo_cpu, llamafactory"),
        (
            ("+experiment=quickstart", "trainer=grpo"),
            "\\+experiment=quickstart sets trainer.recent_iterations, which trainer=grpo lacks; leave",
        ),
    ],
    ids=[
        "key of another kind",
        "value",
        "adapter of the output layer",
        "adapter of a layer that is not a list",
        "key of another kind, the other way",
        "combination",
        "option",
        "experiment of another kind",
    ],
)
def test_keys_that_do_not_fit_the_chosen_trainer_are_refused_in_one_line(words, message):
    with pytest.raises(HarnessError, match=message) as raised:
        compose(*words)
    assert "\n" not in str(raised.value)
