"""A context that the engine cannot take is refused before anything starts."""

import pytest

from rl_agent.config.plan import Command
from rl_agent.errors import ConfigError
from rl_agent.plan.context import check_context
from rl_agent.plan.inert import notes
from tests.unit.config.overrides.test_compose import compose
from tests.unit.plan.test_checks import BOTH

COMMAND = Command.model_validate(BOTH)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("context.max_images=5", "engine.limit_mm_per_prompt={image: 3}"),
            "limit_mm_per_prompt.image=3 refuses",
        ),
        (("context.max_images=null", "engine.limit_mm_per_prompt={image: 3}"), "context.max_images=null"),
        (("context.response_tokens=512", "engine.max_model_len=512"), "response_tokens=512 leave no room in"),
        (
            ("context=summary", "engine.max_model_len=512", "context.response_tokens=64"),
            "and context.summary_tokens=512 leave no room in engine.max_model_len=512",
        ),
    ],
    ids=str,
)
def test_a_context_that_cannot_work_is_refused_in_one_line(words, message):
    with pytest.raises(ConfigError, match=message) as told:
        check_context(compose(*words).config, COMMAND)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("context=everything", "engine.limit_mm_per_prompt={image: 3}"),
        ("context.max_images=3", "engine.limit_mm_per_prompt={image: 3}"),
        ("engine.limit_mm_per_prompt={image: 0}",),
        ("context=summary",),
    ],
    ids=str,
)
def test_a_context_that_can_work_passes(words):
    check_context(compose(*words).config, COMMAND)


@pytest.mark.parametrize("words", [("context.max_images=0",), ("context=window", "context.keep_rounds=1")])
def test_a_window_without_images_and_a_key_of_another_policy_are_errors(words):
    with pytest.raises(ConfigError, match="context"):
        compose(*words)


def test_a_window_of_images_without_images_is_noted_as_inert():
    config = compose("engine.limit_mm_per_prompt={image: 0}").config
    note = "context.max_images changes nothing: engine.limit_mm_per_prompt.image=0 takes no images"
    assert notes(config, ["context.max_images"]) == (note,)
    assert notes(compose().config, ["context.max_images"]) == ()


def test_the_default_keeps_70_steps_of_screenshots_inside_the_context():
    config = compose("engine=gpu").config
    assert (config.context.kind, config.context.max_images, config.engine.max_model_len) == (
        "window",
        5,
        32768,
    )
    assert config.context.room_for_response(32768, config.policy_config.max_new_tokens) == 3072


GSPO = ("trainer=grpo", "pool=elastic", "rollout.group_size=8", "trainer/recipe=gspo")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (GSPO, ["policy_loss=gspo"]),
        ((*GSPO, "trainer.loss.sequence_mask=product"), ["policy_loss=gspo", "sequence_mask=product"]),
        ((*GSPO, "context=everything"), []),
        ((*GSPO, "env_config.train_difficulty_max_steps={easy: 1, medium: 1, hard: 1}"), []),
        ((*GSPO[:-1], "trainer/recipe=dr_grpo"), []),
        ((), []),
    ],
    ids=str,
)
def test_a_loss_that_depends_on_where_episodes_are_cut_is_noted(words, names):
    notes = [note for note in compose(*words).notes if "where context=window cuts it" in note]
    assert [note.split()[0].removeprefix("trainer.loss.") for note in notes] == names
