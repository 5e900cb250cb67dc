"""A name that an installed library does not have is refused before anything starts."""

from importlib.util import find_spec

import pytest

from rl_agent.errors import ConfigError
from rl_agent.plan.library_names import check_engine_names, check_trainer_names, templates
from tests.unit.overrides.test_compose import compose

# Looked up, not imported: every worker of a test run collects this file, and vLLM takes seconds.
pytestmark = pytest.mark.skipif(
    not (find_spec("llamafactory") and find_spec("vllm")), reason="LLaMA-Factory or vLLM is not installed"
)


def check(*words):
    config = compose(*words).config
    check_trainer_names(config.trainer, config.model.template)
    check_engine_names(config)


REFUSED = {
    "model_config.template=qwen3_v": "model_config.template=qwen3_v: LLaMA-Factory .*; did you mean qwen3_v",
    "model_config.template=zzz": "model_config.template=zzz: .* no such name; it has .* in all\\)",
    "trainer.lr_scheduler_type=cosin": "did you mean cosine",
    "trainer.report_to=wandbb": "did you mean wandb",
    "trainer.report_to=[wandb,tensorbord]": "trainer.report_to=tensorbord: .*did you mean tensorboard",
    "model_config.reasoning_parser=deepseek_r11": "did you mean deepseek_r1",
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_name_that_a_library_lacks_is_refused_with_the_nearest(word):
    with pytest.raises(ConfigError, match=REFUSED[word]) as raised:
        check(word)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("trainer.report_to=all",),
        ("model=qwen3-think",),
        ("model_config.reasoning_parser=mine", "engine.extra_args.reasoning-parser-plugin=mine.py"),
        ("+experiment=quickstart",),
        ("+experiment=quickstart_web",),
    ],
    ids=["defaults", "every recorder", "thinking", "a plugin's parser", "experiment", "web experiment"],
)
def test_names_that_libraries_have_pass(words):
    check(*words)


def test_templates_are_those_of_the_installed_library():
    assert {"qwen3_vl", "qwen3_nothink", "llama3"} <= templates()
