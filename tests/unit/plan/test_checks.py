"""Settings that `trainer=grpo` does not go with are refused before anything starts."""

import os
import socket

import pytest

from rl_agent.config.plan import Command
from rl_agent.errors import ConfigError
from rl_agent.plan.checks import check_agents, check_engine, check_gpus, check_trainer
from tests.unit.config.overrides.test_compose import compose

BOTH = {
    "rl_phase": "both", "eval_interval": 1, "rollout_split": None, "debug_mode": False, "resume": False,
    "max_iterations": 1, "num_nodes": 1, "rank": 0, "rank_weights": (1,), "overrides": (),
}  # fmt: skip
GROUPS_OF_8 = "rollout.group_size=8"
POOL = "pool=elastic"


@pytest.mark.parametrize(("words", "num_gpus"), [((), 0), (("trainer.nproc_per_node=4",), 2)])
def test_too_few_gpus_for_the_training_are_refused(words, num_gpus):
    elsewhere = ("engine=gpu", "pool.local_engine=false", GROUPS_OF_8, POOL)
    config = compose("trainer=grpo", *elsewhere, *words).config
    with pytest.raises(ConfigError, match=rf"nproc_per_node=\d: {num_gpus} GPUs and \d+ cores"):
        check_trainer(config, Command.model_validate(BOTH), num_gpus)
    check_trainer(config, Command.model_validate(BOTH), 4)


@pytest.mark.parametrize("trainer", ["llamafactory_cpu", "grpo_cpu"])
def test_more_training_processes_than_cores_are_refused_on_a_cpu(trainer):
    words = ("engine=cpu", f"trainer={trainer}", POOL, GROUPS_OF_8)
    with pytest.raises(ConfigError, match=r"trainer.nproc_per_node=1000: 0 GPUs and \d+ cores"):
        config = compose(*words, "trainer.nproc_per_node=1000").config
        check_trainer(config, Command.model_validate(BOTH), 0)
    check_trainer(compose(*words, "trainer.nproc_per_node=1").config, Command.model_validate(BOTH), 0)


@pytest.mark.parametrize("key", ["tensor_parallel_size", "data_parallel_size"])
def test_gpus_that_a_machine_without_any_lacks_are_refused(key):
    config = compose("engine=cpu", f"engine.{key}=1000").config
    with pytest.raises(ConfigError, match=rf"engine.{key}=1000.*: 0 GPUs are visible"):
        check_gpus(config, Command.model_validate(BOTH), 0)
    check_gpus(compose("engine=cpu").config, Command.model_validate(BOTH), 0)


@pytest.mark.parametrize(
    ("words", "changes", "message"),
    [
        ((GROUPS_OF_8, POOL), {"rl_phase": "update"}, "use --rl-phase both"),
        ((GROUPS_OF_8, POOL), {"debug_mode": True}, "--debug-mode"),
        ((GROUPS_OF_8, POOL, "trainer.placement=hybrid"), {"num_nodes": 2}, "hybrid requires --num-nodes 1"),
        ((GROUPS_OF_8, POOL, "policy_config.top_p=0.9"), {}, "the whole distribution"),
        ((POOL, "rollout.group_size=1"), {}, "compares siblings"),
        ((GROUPS_OF_8, "pool=none"), {}, "add pool=elastic"),
        ((POOL, "trainer.placement=hybrid", "pool.local_engine=false"), {}, "local_engine=false starts none"),
    ],
    ids=[
        "update alone", "external engine", "turns on two nodes", "cut distribution", "no siblings", "no pool",
        "no engine to take turns with",
    ],
)  # fmt: skip
def test_a_combination_that_cannot_work_is_refused(words, changes, message):
    config = compose("trainer=grpo", *words).config
    with pytest.raises(ConfigError, match=message):
        check_trainer(config, Command.model_validate(BOTH | changes))


@pytest.mark.parametrize("placement", ["shared", "colocated", "hybrid"])
def test_trainer_and_engine_have_the_same_gpus_only_by_placement(placement):
    config = compose("trainer=grpo", GROUPS_OF_8, POOL, num_gpus=2).config
    with pytest.raises(ConfigError, match="or let them take turns"):
        check_trainer(config, Command.model_validate(BOTH), num_gpus=2)
    config = compose("trainer=grpo", GROUPS_OF_8, POOL, f"trainer.placement={placement}", num_gpus=2).config
    check_trainer(config, Command.model_validate(BOTH), num_gpus=2)


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("127.0.0.1,192.0.2.1", "weights.host=192.0.2.1 weights.port=0: Cannot assign"),
        ("127.0.0.1,127.0.0.1", "127.0.0.1 and 127.0.0.1 are one address"),
        ("127.0.0.1,localhost", "127.0.0.1 and localhost are one address"),
        ("0.0.0.0", "name the addresses themselves"),
    ],
)
def test_an_unusable_weights_address_is_refused_on_the_trainers_node_alone(hosts, message):
    config = compose("trainer=grpo", GROUPS_OF_8, "pool=elastic", f"weights.host={hosts}").config
    with pytest.raises(ConfigError, match=message) as raised:
        check_engine(config, Command.model_validate(BOTH), set(), {})
    assert "\n" not in str(raised.value)
    check_engine(config, Command.model_validate(BOTH | {"rank": 1}), set(), {})


def test_a_weights_port_taken_at_one_of_the_addresses_is_refused():
    with socket.create_server(("127.0.0.2", 0)) as taken:
        words = ("weights.host=127.0.0.1,127.0.0.2", f"weights.port={taken.getsockname()[1]}")
        config = compose("trainer=grpo", GROUPS_OF_8, POOL, *words).config
        with pytest.raises(ConfigError, match=r"weights\.host=127\.0\.0\.2 .* is in use by process"):
            check_engine(config, Command.model_validate(BOTH), set(), {})


def test_an_address_for_agents_that_is_in_use_is_refused_if_agents_play():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        key = f"env_config.kwargs.agent.listen=127.0.0.1:{taken.getsockname()[1]}"
        env = compose(f"+{key}").config.env_config
        with pytest.raises(
            ConfigError, match=rf"^{key} is in use by process {os.getpid()} .*; stop that program, or "
        ):
            check_agents(env, {"math", "agent"}, set())
        check_agents(env, {"math"}, set())
        check_agents(env, {"agent"}, {os.getpid()})
    check_agents(env, {"agent"}, set())
