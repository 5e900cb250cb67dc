"""LLaMA-Factory's template follows from the model, unless one is set."""

import pytest

from rl_agent.errors import ConfigError
from rl_agent.trainer.llamafactory.template import OF_IMAGES, choose_template, registered
from tests.unit.config.overrides.test_compose import compose

TYPE = {"model_type": "new_vl"}


def chosen(model, *words):
    return choose_template(compose(*words).config.model, model)


@pytest.mark.parametrize(
    ("model", "template"),
    [
        ({"model_type": "qwen3"}, "empty"),
        ({"model_type": "llama"}, "empty"),
        ({"model_type": "gemma3_text"}, "empty"),
        ({"model_type": "qwen3_vl", "vision_config": {}}, "qwen3_vl_nothink"),
        ({"model_type": "qwen2_5_vl"}, "qwen2_vl"),  # the hub tells the type alone
        ({}, None),
    ],
)
def test_a_template_follows_from_the_type_of_the_model(model, template):
    assert chosen(model) == template
    assert chosen(model, "model_config.template=qwen2_vl") == "qwen2_vl"


def test_an_unknown_model_of_images_is_refused_with_candidates():
    with pytest.raises(
        ConfigError, match=r"type new_vl\), as one of gemma3, .*qwen3_vl_nothink.*; empty for text"
    ):
        chosen(TYPE | {"vision_config": {}})
    assert chosen(TYPE | {"vision_config": {}}, "model_config.template=llava") == "llava"


@pytest.mark.parametrize(
    ("typed", "instead"),
    [("qwen3_nothnk", "did you mean qwen3_nothink"), ("zzzzzz", "leave it out to take the model's")],
)
def test_a_template_that_llamafactory_lacks_is_refused(typed, instead):
    with pytest.raises(ConfigError, match=rf"^model_config\.template={typed}: .* no template .*; {instead}"):
        chosen({}, f"model_config.template={typed}")


def test_every_chosen_template_is_one_of_llamafactorys():
    assert {*OF_IMAGES.values(), "empty"} <= registered() and len(registered()) > 100
