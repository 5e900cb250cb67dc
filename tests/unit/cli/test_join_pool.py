"""The options of the command `join-pool` become the settings of a worker."""

import pytest

from rl_agent.cli.join_pool import main
from rl_agent.errors import UsageError
from rl_agent.worker import main as worker_module
from rl_agent.worker import preflight


@pytest.fixture
def settings_of(monkeypatch):
    """Return a function that gives the settings which a worker gets for some words."""
    monkeypatch.delenv("RL_AGENT_POOL_TOKEN", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(preflight, "count_gpus", lambda environ: 2)
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: name)
    started = []

    class Worker:
        def __init__(self, settings, session):
            started.append(settings)

        async def run(self, leaving):
            pass

    monkeypatch.setattr(worker_module, "Worker", Worker)

    def tell(*words):
        assert main([*words]) == 0
        return started.pop()

    return tell


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--manager", "10.0.0.1:5000"], "--manager: '10.0.0.1:5000' is not http://HOST:PORT"),
        (["--manager", "ftp://host:1"], "--manager: 'ftp://host:1'"),
        (["--manager", "http://host:x"], "--manager: 'http://host:x'"),
        (["--engine-args", "'open"], "--engine-args"),
        (["--model", "/nope"], "--model '/nope': there is no such folder"),
        (["--gpus", "a,b"], "--gpus 'a,b'"),
        (["--capacity", "0"], "--capacity: '0' is not a whole number from 1 to 1000000"),
        (["--name", "a b/c"], "--name 'a b/c'"),
        (["--direct", "192.0.2.1", "--weights", "store=x"], "one without --direct does"),
    ],
)
def test_impossible_values_are_refused_by_their_flag(settings_of, words, named):
    with pytest.raises(UsageError, match=named):
        settings_of(*words)


def test_beside_its_manager_an_engine_takes_weights_and_needs_no_key(settings_of, monkeypatch):
    settings = settings_of(
        "--gpus", "0,1", "--price", "2.5", "--engine-args", "--dtype 'b f'", "--weights", "retries=7"
    )
    assert settings.is_direct and settings.command.loads_weights and settings.command.api_key is None
    assert settings.command.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert settings.name.endswith("/gpu0,1") and settings.price_per_hour == 2.5
    assert settings.command.extra == ("--dtype", "b f") and settings.weights.retries == 7
    assert settings.log.name.startswith("engine-") and "/" not in settings.log.name


def test_an_engine_reached_from_elsewhere_has_a_key_and_takes_no_weights(settings_of):
    settings, settings_again = (settings_of("--direct", "192.0.2.1") for _ in range(2))
    assert settings.command.host == "192.0.2.1" and not settings.command.loads_weights
    assert settings.command.api_key and settings.command.api_key != settings_again.command.api_key
    assert settings.name != settings_again.name


def test_a_token_is_read_from_its_file_each_time_it_is_needed(settings_of, tmp_path):
    file = tmp_path / "token"
    file.write_text("first\n")
    file.chmod(0o600)
    settings = settings_of("--token-file", str(file))
    file.write_text("second\n")
    assert settings.read_token() == "second"
