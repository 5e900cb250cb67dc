"""Settings that change nothing are named before the run begins."""

from dataclasses import replace

import pytest

from rl_agent.config.plan import Command
from rl_agent.plan.inert import of_tasks
from rl_agent.types import Task
from tests.unit.config.overrides.test_compose import compose
from tests.unit.plan.test_checks import BOTH

GROUPS_OF_8 = "rollout.group_size=8"


POOL = "pool=elastic"
ONE_STEP = ("trainer.mini_batches=1",)


@pytest.mark.parametrize(
    ("words", "key", "told"),
    [
        ((), "trainer.loss.clip_high=0.28", None),
        (ONE_STEP, "trainer.loss.clip_high=0.28", "with trainer.mini_batches=1 an iteration makes one step"),
        ((*ONE_STEP, "trainer.batch.max_staleness=1"), "trainer.loss.dual_clip=null", "mini_batches=1"),
        (("trainer.mini_batches=2",), "trainer.loss.clip_high=0.28", None),
        (
            ("trainer.mini_batches=2", "trainer.loss.proximal=current"),
            "trainer.loss.clip_low=0.1",
            "with trainer.loss.proximal=current the ratio is 1",
        ),
        (
            ("trainer.loss.proximal=behaviour", "trainer.loss.correction=none"),
            "trainer.loss.clip_high=0.28",
            None,
        ),
        ((), "trainer.loss.correction_low=0.1", "it belongs to correction=mask"),
        (("trainer.loss.correction=mask",), "trainer.loss.correction_low=0.1", None),
        ((), "trainer.loss.kl_coefficient=0.1", "kl_in is none"),
        (("trainer.loss.kl_in=loss",), "trainer.loss.kl_coefficient=0.1", None),
        ((), "trainer.max_num_gen_batches=5", "no group is left out"),
        ((), "trainer.loss.overlong_cache=100", "it belongs to overlong=penalty"),
        (("trainer.loss.overlong=penalty",), "trainer.loss.overlong_cache=100", None),
        ((), "trainer.loss.constant_length=100", "it belongs to normalization=dr_grpo"),
        ((), "trainer.loss.sapo_temperature_negative=2", "it belongs to policy_loss=sapo"),
        (("trainer/recipe=sapo",), "trainer.loss.sapo_temperature_negative=2", None),
        (("trainer/recipe=sapo",), "trainer.loss.clip_low=0.1", "policy_loss=sapo has a gate"),
        (("trainer/recipe=cispo",), "trainer.loss.dual_clip=3", "it bounds the losses of ppo and gspo"),
        ((), "trainer.loss.sequence_mask_bound=3", "sequence_mask is none"),
    ],
)
def test_a_setting_that_changes_nothing_is_named_before_the_run_begins(words, key, told):
    notes = compose("trainer=grpo", GROUPS_OF_8, POOL, *words, key).notes
    named = [note for note in notes if note.startswith(f"{key.partition('=')[0]} changes nothing: ")]
    assert len(named) == (told is not None)
    assert all(told in note and "\n" not in note for note in named)


def test_an_environment_for_tasks_without_one_is_named_where_all_have_one():
    word = "env_config.default_env=math"
    config, command = compose(word).config, Command.model_validate(BOTH | {"overrides": (word,)})
    task = Task("1", "1 + 1 =", "reasoning_gym", "easy")
    note = f"{word} changes nothing: every task names its env, reasoning_gym"
    assert of_tasks(config, command, [task]) == (note,)
    assert of_tasks(config, command, [task, replace(task, env="math")]) == ()
    assert of_tasks(config, Command.model_validate(BOTH), [task]) == ()
