"""The nodes of a run must agree on some settings, and each may have others for itself."""

from pathlib import Path

import pytest

from rl_agent.cluster.protocol import shared_config
from rl_agent.config.overrides.words import parse_override
from rl_agent.errors import ConfigError
from rl_agent.plan.compose import compose_config


def config(*words, data_path="/data"):
    overrides = [parse_override(word, "test") for word in words]
    return compose_config(
        overrides, data_path=Path(data_path), log_path=Path("/log"), num_gpus=0
    ).config  # fmt: skip


def test_every_own_key_is_a_key_of_the_configuration():
    sections = config().model_dump(mode="json", by_alias=True)
    for name in shared_config.PER_NODE:
        section, _, key = name.partition(".")
        assert section in sections
        assert not key or key in sections[section]


def test_nodes_with_engines_and_limits_of_their_own_agree():
    other = config(
        "engine.port=9001", "env_config.server_size=3", "cluster.interface=eth1", data_path="/elsewhere"
    )  # fmt: skip
    shared_config.check_same_config(other, config(), "rank 1")
    assert shared_config.digest(other) == shared_config.digest(config())


@pytest.mark.parametrize("word", ["seed=4", "policy_config.temperature=0.1", "trainer.num_train_epochs=9"])
def test_a_node_with_other_settings_is_refused_and_the_key_is_named(word):
    other = config(word)
    assert shared_config.digest(other) != shared_config.digest(config())
    with pytest.raises(ConfigError, match=f"rank 1 differs from the master: {word.partition('=')[0]} is"):
        shared_config.check_same_config(other, config(), "rank 1")


def test_only_the_first_of_many_differences_are_told():
    other = config("seed=4", "rollout.group_size=3", "run_name=x", "trainer.num_train_epochs=9")
    with pytest.raises(ConfigError, match=r"and 1 more\)") as raised:
        shared_config.check_same_config(other, config(), "rank 1")
    assert "\n" not in str(raised.value)


def test_a_node_that_joins_takes_the_run_and_keeps_its_engine():
    masters = config("seed=4", "engine.port=9000", "env_config.server_size=5")
    own = config("engine.port=9001", "env_config.server_size=3")
    joined = shared_config.config_for_joiner(masters, own, ["engine.port", "env_config.server_size"])
    assert (joined.seed, joined.engine.port, joined.env_config.server_size) == (4, 9001, 3)
    assert shared_config.digest(joined) == shared_config.digest(masters)


def test_a_node_that_joins_may_not_set_what_is_the_runs():
    with pytest.raises(ConfigError, match=r"^seed: a node that joins takes this from the run"):
        shared_config.config_for_joiner(config(), config("seed=4"), ["seed"])
