"""The options of the command `env-server`, refused by their names before anything starts."""

import pytest

from rl_agent.cli.env_server import main
from rl_agent.env.remote import server
from rl_agent.errors import ConfigError, UsageError
from tests.support.certificate import make_certificate


@pytest.fixture
def settings_of(monkeypatch):
    """Return a function that gives the settings which the server is told for some words."""
    monkeypatch.delenv("RL_AGENT_ENV_TOKEN", raising=False)
    started = []

    async def serve(settings, on_listening, leaving):
        started.append(settings)

    monkeypatch.setattr(server, "serve", serve)

    def tell(*words):
        assert main([*words]) == 0
        return started.pop()

    return tell


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--listen", "5100"], "--listen 5100: expected HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], "--listen 127.0.0.1:70000"),
        (["--workers", "0"], "--workers 0: at least 1"),
        (["--places", "0"], "--places 0: from 1 to"),
        (["--tls-key", "key.pem"], "go together"),
    ],
)
def test_impossible_values_are_refused_by_their_flag(settings_of, words, named):
    with pytest.raises(UsageError, match=named):
        settings_of(*words)


def test_a_reachable_server_needs_a_token_from_a_file_or_a_variable(settings_of, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="only loopback may be served without a token"):
        settings_of("--listen", "0.0.0.0:0")
    (tmp_path / "token").write_text("# none yet\n")
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(ConfigError, match="there is no token in it"):
        settings_of("--token-file", str(tmp_path / "token"))
    monkeypatch.setenv("RL_AGENT_ENV_TOKEN", "secret")
    assert settings_of("--listen", "0.0.0.0:0").tokens.is_among("Bearer secret")


def test_settings_of_a_kind_are_the_servers_own_and_checked_when_it_starts(settings_of):
    assert settings_of("+kwargs.gymnasium.view=image").setup.kwargs == {"gymnasium": {"view": "image"}}
    with pytest.raises(ConfigError, match=r"does not take these env_config.kwargs: .*'colour'"):
        settings_of("+kwargs.math.colour=red")


def test_places_follow_from_workers_and_configuration_keys_from_words(settings_of, tmp_path):
    settings = settings_of("--workers", "3", "--listen", "[::1]:0", "worker_max_rss_mib=77")
    assert (settings.host, settings.port, settings.places) == ("::1", 0, 48)
    assert (settings.limits.workers, settings.limits.max_rss_mib) == (3, 77)
    certificate, key = make_certificate(tmp_path)
    assert settings_of("--tls-certificate", str(certificate), "--tls-key", str(key)).tls is not None
