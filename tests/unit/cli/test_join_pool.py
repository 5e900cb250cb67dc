"""The options of the command `join-pool` become the settings of a worker."""

import pytest

from rl_agent.cli.join_pool import main
from rl_agent.errors import UsageError
from rl_agent.worker import preflight, several_pools
from tests.support.pool_setup import token_file

TWO = ("--manager", "http://127.0.0.1:5000", "--manager", "http://127.0.0.1:5001")


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

    monkeypatch.setattr(several_pools, "Worker", Worker)

    def tell(*words, workers=1):
        started.clear()
        assert main([*words]) == 0
        assert len(started) == workers
        return started[0] if workers == 1 else started

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
        ([*TWO], "--capacity: expected the whole engine's, 2 or more"),
        ([*TWO, "--capacity", "1"], "--capacity: expected the whole engine's, 2 or more"),
        ([*TWO, "--capacity", "4", "--direct"], "--direct: with several --manager"),
        ([*TWO, "--capacity", "4", "--engine", "sglang"], "--engine sglang: keeps no adapters"),
        (
            [*TWO, "--capacity", "4", *3 * ["--token-file", "x"]],
            "--token-file: expected one",
        ),
        ([*TWO, "--capacity", "4", "--manager-file", "x"], "leave --manager out"),
        ([*TWO[:2], *TWO[:2], "--capacity", "4"], "--manager http://127.0.0.1:5000: is given twice"),
        (
            [*TWO, "--capacity", "4", "--engine-args", "--max-loras 3 --max-loras=1"],
            "--engine-args --max-loras 1: 2 runs need 2; leave it out",
        ),
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


def test_workers_of_two_pools_share_one_engine_and_divide_what_it_has(settings_of, tmp_path):
    files = [tmp_path / "first", tmp_path / "second"]
    for file in files:
        token_file(file, file.name)
    words = [*TWO, "--capacity", "9", "--price", "3", "--weights", "peer_port=7000"]
    first, second = settings_of(*words, *(w for f in files for w in ("--token-file", str(f))), workers=2)
    assert [each.manager for each in (first, second)] == [*TWO[1::2]]
    assert [each.read_token() for each in (first, second)] == ["first", "second"]
    assert [each.weights.peer_port for each in (first, second)] == [7000, 7001]
    assert [(each.capacity, each.price_per_hour, each.is_direct) for each in (first, second)] == 2 * [
        (4, 1.5, False)
    ]
    assert first.command is second.command and (first.log, first.name) == (second.log, second.name)
    assert first.shared is second.shared is not None and (first.slot, second.slot) == (0, 1)
    words = first.command.words("model", 7)
    assert words[words.index("--max-loras") + 1] == first.command.environ()["RL_AGENT_ADAPTER_SLOTS"] == "2"


def test_a_token_is_read_from_its_file_each_time_it_is_needed(settings_of, tmp_path):
    file = tmp_path / "token"
    file.write_text("first\n")
    file.chmod(0o600)
    settings = settings_of("--token-file", str(file))
    file.write_text("second\n")
    assert settings.read_token() == "second"
