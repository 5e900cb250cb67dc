"""One group of settings, in the same unit, for whoever makes, gives or fetches weights."""

import pytest

from rl_agent.cli import join_pool
from rl_agent.errors import ConfigError, UsageError
from rl_agent.pool.settings import load_weights
from rl_agent.weights.server.server import ServerSettings
from rl_agent.worker import preflight
from tests.unit.config.overrides.test_compose import compose

TEN_GBIT_IN_BYTES = 1.25e9


def test_links_and_caps_are_in_gigabits_for_all():
    weights = load_weights(["link_gbit_per_s=10", "cap_gbit_per_s=10", "piece_mib=2"])
    assert (weights.link_bytes_per_s, weights.piece_bytes) == (TEN_GBIT_IN_BYTES, 2**21)
    assert ServerSettings.of(weights, ("127.0.0.1",), weights.peer_port).bytes_per_s == TEN_GBIT_IN_BYTES


def test_no_cap_is_none():
    assert ServerSettings.of(load_weights([]), ("127.0.0.1",), 0).bytes_per_s is None


@pytest.mark.parametrize(
    ("word", "hosts"),
    [
        ("host=10.0.0.1", ("10.0.0.1",)),
        ("host=10.0.0.1,10.1.0.1", ("10.0.0.1", "10.1.0.1")),
        ("host=[10.0.0.1,10.1.0.1]", ("10.0.0.1", "10.1.0.1")),
        ("host=null", None),
    ],
)
def test_one_address_or_several_are_written_alike_everywhere(word, hosts):
    assert load_weights([word]).host == hosts
    assert compose(f"weights.{word}").config.weights.host == hosts


def test_threads_are_those_asked_for_else_those_of_the_cores():
    assert load_weights(["threads=3"]).thread_count == 3
    assert 1 <= load_weights([]).thread_count <= 16


@pytest.mark.parametrize("word", ["cap_gbit_per_s=0", "transport=pigeon", "peer_port=70000", "prt=1"])
def test_a_worker_is_told_which_of_its_words_does_not_fit(word):
    with pytest.raises(ConfigError, match=word.partition("=")[0]):
        load_weights([word])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_worker_whose_engine_takes_no_weights_refuses_their_transport(engine, monkeypatch):
    monkeypatch.setattr(preflight, "check_engine", lambda engine, python: None)
    words = ["--engine", engine, "--direct", "10.0.0.9"]
    with pytest.raises(UsageError, match="transport=nccl: this engine takes no weights while it runs"):
        join_pool.main(["--manager", "http://127.0.0.1:1", "--weights", "transport=nccl", *words])
