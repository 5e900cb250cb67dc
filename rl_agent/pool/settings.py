"""The manager's settings are `configs/pool/elastic.yaml` under `key=value` words, checked once."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from rl_agent.config.overrides.compose import Schema, compose_words
from rl_agent.config.overrides.user_class import is_module_in
from rl_agent.config.plan import PoolConfig
from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.errors import ConfigError
from rl_agent.http.tls import serving, trusting
from rl_agent.http.tokens import is_loopback, read_tokens
from rl_agent.pool.policy_class import find_policy
from rl_agent.pool.scheduler.records import PoolRules

MANAGER = Schema("pool/elastic", PoolConfig)
WORKERS_WEIGHTS = Schema("weights/restart", WeightsConfig)


def load_settings(words: Sequence[str], environ: Mapping[str, str]) -> PoolConfig:
    """Return the manager's settings. Raises ConfigError for a wrong value, or an unprotected manager."""
    config = with_callers_policy(compose_words(MANAGER, words), Path.cwd())
    check_settings(config, environ)
    return config


def with_callers_policy(config: PoolConfig, folder: Path) -> PoolConfig:
    """Add the caller's folder to `module_folders` if the module of `policy` lies in it."""
    if not is_module_in(folder, config.policy):
        return config
    folders = tuple(dict.fromkeys([*config.module_folders, folder]))
    return config.model_copy(update={"module_folders": folders})


def load_weights(words: Sequence[str]) -> WeightsConfig:
    """Return the weight settings of a worker that is not part of a run. Raises ConfigError."""
    return compose_words(WORKERS_WEIGHTS, words, "--weights")


def check_settings(config: PoolConfig, environ: Mapping[str, str], *, section: str = "") -> None:
    """Raise ConfigError for settings that do not go together, and for an unprotected manager.

    `section` goes before the keys where they are named: they are those of a run, or of a manager by itself.
    """
    networks_of(f"{section}allowed_sender_ips", config.allowed_sender_ips)
    networks_of(f"{section}allowed_engine_networks", config.allowed_engine_networks)
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise ConfigError(f"{section}tls_certificate and {section}tls_key go together: set both or neither")
    if config.heartbeat_s * 2 > config.lease_s:
        raise ConfigError(
            f"{section}heartbeat_s={config.heartbeat_s:g}: at most half of"
            f" {section}lease_s={config.lease_s:g}"
        )
    for key in ("token_file", "admin_token_file", "tls_certificate", "tls_key", "tls_ca"):
        path = getattr(config, key)
        if path is not None and not path.is_file():
            raise ConfigError(f"{section}{key}={path}: there is no such file")
    for key in ("token_file", "admin_token_file"):
        path = getattr(config, key)
        if path is not None:
            read_tokens(path, f"{section}{key}")
    serving(config.tls_certificate, config.tls_key, f"{section}tls_key")
    trusting(config.tls_ca)
    if not is_loopback(config.host) and not tokens_of(config, environ):
        raise ConfigError(
            f"{section}host={config.host}: only loopback may be served without a token; write one to a file"
            f" and set {section}token_file=PATH, or set ${config.token_env_var}"
        )


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks_of(key: str, texts: Sequence[str]) -> tuple[Network, ...]:
    """Parse networks. Raises ConfigError."""
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}; expected networks such as 192.168.0.0/16") from error


def tokens_of(config: PoolConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the valid tokens: lines of the file, else the environment variable; empty if there is none."""
    if config.token_file is not None:
        return read_tokens(config.token_file)
    token = environ.get(config.token_env_var, "").strip()
    return (token,) if token else ()


def admin_tokens_of(config: PoolConfig) -> tuple[str, ...]:
    """Return the tokens of operators, who may drain and end any engine; empty without such a file."""
    return read_tokens(config.admin_token_file, "admin_token_file") if config.admin_token_file else ()


def rules_of(config: PoolConfig) -> PoolRules:
    """Return what the scheduler decides by: keys of the same names, its constants, the policy as a class.

    Raises ConfigError.
    """
    names = {field.name for field in fields(PoolRules)} & PoolConfig.model_fields.keys()
    rules = {name: getattr(config, name) for name in names}
    return PoolRules(**rules | {"policy": find_policy("policy", config.policy, config.module_folders)})
