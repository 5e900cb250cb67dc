"""A loss that would not do what its settings say is refused."""

import pytest

from rl_agent.errors import ConfigError
from tests.unit.config.overrides.test_compose import compose

GROUPS_OF_8 = "rollout.group_size=8"


POOL = "pool=elastic"


def test_samples_that_are_not_known_yet_are_not_dealt():
    words = ("trainer=grpo", GROUPS_OF_8, POOL, "trainer.batch.order=shuffled")
    dropping = (*words, "trainer.loss.drop_uninformative=true")
    with pytest.raises(ConfigError, match="max_num_gen_batches=3: must be 1 with") as told:
        compose(*dropping)
    assert "\n" not in str(told.value)
    assert compose(*words).config.num_gen_batches == 1
    assert compose(*dropping, "trainer.max_num_gen_batches=1").config.num_gen_batches == 1
    assert compose(*words[:3], dropping[-1]).config.num_gen_batches == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("trainer.loss.kl_in=loss", "trainer.loss.kl_estimator=k1"),
            r"^trainer\.loss\.kl_estimator=k1: must be k2 \(.*\) or k3 \(.*\) with kl_in=loss: .* is 0",
        ),
        (("trainer.loss.kl_in=reward",), r"^trainer\.loss\.kl_estimator=k3: must be k1 with kl_in=reward: "),
        (
            ("trainer.loss.kl_in=reward", "trainer.loss.kl_estimator=k2"),
            r"^trainer\.loss\.kl_estimator=k2: must be k1 with kl_in=reward: ",
        ),
        (
            (
                "trainer.loss.drop_uninformative=true",
                "trainer.loss.kl_in=reward",
                "trainer.loss.kl_estimator=k1",
            ),
            r"^trainer\.loss\.drop_uninformative=true: must be false with kl_in=reward: ",
        ),
        (
            ("trainer.loss.overlong=penalty", "trainer.loss.overlong_cache=3072"),
            r"^trainer\.loss\.overlong_cache=3072: must be below longest_response, 3072 tokens$",
        ),
        (
            (
                "trainer.loss.proximal=behaviour",
                "trainer.loss.correction=none",
                "trainer.loss.sequence_mask=product",
            ),
            r"^trainer\.loss\.sequence_mask=product: must be none: ",
        ),
        (
            ("trainer.loss.rewards=each", "trainer.loss.kl_in=loss"),
            r"^trainer\.loss\.rewards=each: must be together with kl_in=loss",
        ),
        (("policy_config.temperature=0.6",), r"^trainer\.loss\.temperature=0.6: must be 1: "),
    ],
)
def test_a_loss_that_contradicts_its_settings_is_refused_in_one_line(words, told):
    with pytest.raises(ConfigError, match=told) as refusal:
        compose("trainer=grpo", GROUPS_OF_8, POOL, *words)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("trainer", ["grpo", "grpo_cpu"])
def test_no_default_of_a_streaming_run_drops_responses_for_their_length(trainer):
    words = (f"trainer={trainer}", "engine=cpu", GROUPS_OF_8, POOL, "policy_config.max_new_tokens=777")
    config = compose(*words).config
    rollout, loss = config.rollout, config.grpo.loss
    assert rollout.completion_threshold == 1.0
    assert rollout.request_timeout_s == rollout.episode_timeout_s == 18000
    assert (loss.overlong, loss.longest_response, loss.constant_length) == ("keep", 777, 777)
    given = compose(*words, "rollout.completion_threshold=0.9", "trainer.loss.constant_length=5").config
    assert (given.rollout.completion_threshold, given.grpo.loss.constant_length) == (0.9, 5)
    others = compose("trainer=llamafactory").config.rollout
    assert (others.completion_threshold, others.request_timeout_s) == (0.95, 240)


def test_a_kl_estimate_goes_where_it_regularises():
    for kl_in, estimator in (("loss", "k2"), ("loss", "k3"), ("reward", "k1"), ("none", "k1")):
        words = (f"trainer.loss.kl_in={kl_in}", f"trainer.loss.kl_estimator={estimator}")
        assert compose("trainer=grpo", GROUPS_OF_8, POOL, *words).config.grpo.loss.kl_in == kl_in


def test_a_streaming_run_has_the_fields_batch_and_a_text_model_by_default():
    """verl 0.9: 4 steps an iteration at 1e-6; TRL 1.16: 8 siblings, no KL, 1e-6."""
    config = compose("trainer=grpo", "engine=cpu").config
    assert (config.env_config.train_tasks_rollout_size, config.rollout.group_size) == (128, 8)
    assert (config.grpo.mini_batches, config.grpo.optimizer.learning_rate) == (4, 1e-6)
    assert (config.grpo.loss.kl_in, config.pool.kind) == ("none", "elastic")
    assert config.model.base_model == "Qwen/Qwen3-4B-Instruct-2507"


@pytest.mark.parametrize("word", ["model=qwen3-instruct", "model_config.model_type=qwen3-instruct"])
def test_a_model_that_was_chosen_stays(word):
    config = compose("trainer=grpo", "engine=cpu", word).config
    assert config.model.base_model == "Qwen/Qwen3-VL-8B-Instruct"
