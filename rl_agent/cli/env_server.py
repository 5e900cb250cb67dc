"""The verb `env-server` lets environments live on this machine, for rollouts of others."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rl_agent.cli._numbers import not_negative, seconds
from rl_agent.cli._options import verb_parser
from rl_agent.cli._serving import add_tls_options, serve_until_told
from rl_agent.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from rl_agent.env.remote.server import EnvServerSettings

SUMMARY = "serve environments to rollouts on other machines"
EXAMPLE = """examples:
  rl-agent env-server --workers 8 --token-file env.token --listen 0.0.0.0:5100
  rl-agent env-server --listen 127.0.0.1:0
  rl-agent env-server +kinds.game=my_module:Game +kwargs.game.level=3 worker_max_rss_mib=2048

The rollout names it: env_config.servers=[http://HOST:5100] env_config.servers_token_file=env.token. Keys of
configs/env/default.yaml that say which kinds there are, with which kwargs, or when a worker is replaced, may
follow; the run's kwargs must be the same.
TERM or Ctrl+C drains: episodes that run may end, for --drain-s at most; a second one ends it at once.
"""


def main(argv: list[str]) -> int:
    options = parser().parse_intermixed_args(argv)

    from rl_agent.env.remote.server import serve

    settings = _settings(options)
    # At a second signal the guards end the workers.
    serve_until_told(lambda leaving: serve(settings, _print_url, leaving), second_ends=True)
    return 0


def _print_url(url: str) -> None:
    print(url, flush=True)


def parser() -> argparse.ArgumentParser:
    parser = verb_parser("env-server", SUMMARY, EXAMPLE)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="keys of configs/env/default.yaml")
    parser.add_argument(
        "--listen", default="127.0.0.1:5100", metavar="HOST:PORT", help="default: %(default)s; port 0: any"
    )
    parser.add_argument("--workers", type=int, help="processes; default: one per core, at most 16")
    parser.add_argument("--places", type=int, help="concurrent environments; default: 16 per worker")
    parser.add_argument("--token-file", type=Path, help="file with the token; default: $RL_AGENT_ENV_TOKEN")
    add_tls_options(parser)
    parser.add_argument(
        "--drain-s", type=not_negative, default=600.0, help="time limit of a drain (default 600)"
    )
    parser.add_argument(
        "--client-timeout-s",
        type=seconds,
        default=60.0,
        help="close the environments of a client that is silent for this long (default 60)",
    )
    return parser


def _settings(options: argparse.Namespace) -> "EnvServerSettings":
    """Raises UsageError and ConfigError."""
    from rl_agent.config.overrides.compose import Schema, compose_words
    from rl_agent.config.sections.env import EnvConfig
    from rl_agent.env.registry import EnvironmentRegistry
    from rl_agent.env.remote.environments import limits_of, setup_of, worker_count
    from rl_agent.env.remote.server import EnvServerSettings
    from rl_agent.env.remote.server_api import MAX_PLACES, TOKEN_ENV_VAR
    from rl_agent.http.tls import serving
    from rl_agent.http.tokens import TokenCheck, host_and_port, is_loopback, read_tokens
    from rl_agent.plan.caller import with_callers_kinds

    config = with_callers_kinds(compose_words(Schema("env/default", EnvConfig), options.settings), Path.cwd())
    EnvironmentRegistry(config).check(config.kwargs)
    try:
        host, port = host_and_port(options.listen, "--listen")
    except ValueError as error:
        raise UsageError(str(error)) from None
    workers = worker_count(config) if options.workers is None else options.workers
    places = 16 * workers if options.places is None else options.places
    if workers < 1:
        raise UsageError(f"--workers {workers}: at least 1")
    if not 1 <= places <= MAX_PLACES:
        raise UsageError(f"--places {places}: from 1 to {MAX_PLACES}")
    if (options.tls_certificate is None) != (options.tls_key is None):
        raise UsageError("--tls-certificate and --tls-key go together: give both or neither")
    if options.token_file is not None:
        tokens = read_tokens(options.token_file, "--token-file")
    else:
        token = os.environ.get(TOKEN_ENV_VAR, "").strip()
        tokens = (token,) if token else ()
    if not tokens and not is_loopback(host):
        raise ConfigError(
            f"--listen {options.listen}: only loopback may be served without a token; write one to a file and"
            f" give --token-file PATH, or set ${TOKEN_ENV_VAR}"
        )
    tls = serving(options.tls_certificate, options.tls_key, "--tls-key")
    return EnvServerSettings(
        host=host,
        port=port,
        places=places,
        setup=setup_of(config, threads=max(8, places)),
        limits=limits_of(config, workers),
        tokens=TokenCheck(tokens, options.token_file),
        tls=tls,
        drain_s=options.drain_s,
        client_timeout_s=options.client_timeout_s,
    )
