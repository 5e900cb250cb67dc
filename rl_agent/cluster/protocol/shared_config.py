"""Says which configuration keys all nodes of a run share, and which each node has for itself.

A node has its own engine, addresses and limits. Every other key decides what is collected and trained: two
nodes that differ in one would collect or train different things without a sign of it.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel

from rl_agent.config.plan import Config
from rl_agent.errors import ConfigError

PER_NODE = (
    "data_path",
    "log_path",
    "engine",
    "weights",
    "wandb",
    "cluster.interface",
    "pool.local_engine",
    "pool.module_folders",
    "env_config.server_size",
    "env_config.module_folders",
    "env_config.workers",
    "env_config.worker_timeout_s",
    "env_config.worker_max_episodes",
    "env_config.worker_max_rss_mib",
    "env_config.servers",
    "env_config.servers_token_file",
    "env_config.server_timeout_s",
    "rollout.max_vllm_sessions",
    "rollout.min_vllm_sessions",
)
"""Keys, and sections with all their keys, that may differ between the nodes of a run."""

_PER_NODE = tuple(f"{key}." for key in PER_NODE)
_Model = TypeVar("_Model", bound=BaseModel)


def shared_values(config: Config) -> dict[str, Any]:
    """Return the keys that all nodes must agree on, by their dotted names."""
    flat = _flat(config.model_dump(mode="json", by_alias=True))
    return {key: value for key, value in flat.items() if not is_per_node(key)}


def is_per_node(key: str) -> bool:
    """Return whether a key may differ between the nodes of a run."""
    return f"{key}.".startswith(_PER_NODE)


def digest(config: Config) -> str:
    """Return a digest of the shared keys, equal where two nodes agree."""
    text = json.dumps(shared_values(config), sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def check_same_config(mine: Config, masters: Config, who: str) -> None:
    """Raises `ConfigError` that names the first keys in which this node differs from the master."""
    ours, theirs = shared_values(mine), shared_values(masters)
    names = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if names:
        lines = "; ".join(
            f"{key} is {ours.get(key)!r} here and {theirs.get(key)!r} there" for key in names[:3]
        )
        more = f" (and {len(names) - 3} more)" if len(names) > 3 else ""
        raise ConfigError(f"{who} differs from the master: {lines}{more}; give every node the same settings")


def config_for_joiner(masters: Config, own: Config, set_here: Iterable[str]) -> Config:
    """Combine the master's configuration with the keys that this node has for itself.

    `set_here` are the keys that this node's command line sets. Raises `ConfigError` for one that belongs to
    the run.
    """
    for key in set_here:
        if not is_per_node(key):
            raise ConfigError(
                f"{key}: a node that joins takes this from the run; it may set {', '.join(PER_NODE[2:])}"
            )
    for key in PER_NODE:
        masters = _with_key_of(masters, own, key)
    return masters


def _with_key_of(model: _Model, other: _Model, key: str) -> _Model:
    """Copy a model with the value that another one has for a dotted key."""
    name, _, rest = key.partition(".")
    value = getattr(other, name)
    return model.model_copy(update={name: _with_key_of(getattr(model, name), value, rest) if rest else value})


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
