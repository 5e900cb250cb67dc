"""Asks the server at the engine's address which weight version it holds, and since when it runs."""

import json
import os
import socket
from urllib.parse import urlsplit

from rl_agent.config.plan import Config
from rl_agent.engine.model import OLDER, ResolvedModel, version_of_root
from rl_agent.http import client as http_client
from rl_agent.weights.load.vllm_names import AS_STARTED, READ_HELD

_ASK_TIMEOUT_S = 10.0


def version_served(root: str, config: Config, model: ResolvedModel) -> int | None:
    """Return the weight version of the server that says it loaded `root`, or has taken another since."""
    is_link = os.path.realpath(root) != root
    started_at = engine_started_at(config) if is_link else None
    started_on = version_of_root(root, config, model, started_at)
    if started_on is None or not config.weights.is_inplace:
        return started_on
    taken = version_taken(config.engine.base_url)
    return started_on if taken == AS_STARTED else taken


def version_taken(url: str) -> int:
    """Return what the server's workers have loaded since their start, by their own account.

    `AS_STARTED` if nothing, or if it is not made for that; `OLDER` if they do not say, or hold a torn model.
    """
    body = json.dumps({"method": READ_HELD}).encode()
    try:
        answer = http_client.request(f"{url}/collective_rpc", body, timeout_s=_ASK_TIMEOUT_S)
        held = {result["weight_version"] for result in json.loads(answer)["results"]}
    except http_client.RequestRefused as error:
        return AS_STARTED if error.status == 404 else OLDER
    except (OSError, ValueError, KeyError, TypeError):
        return OLDER
    version = held.pop() if len(held) == 1 else None
    return version if isinstance(version, int) else OLDER


def engine_started_at(config: Config) -> float | None:
    """Return when the vLLM behind the engine's address started, in seconds since the epoch.

    None where it cannot be known: on another machine, or behind something else, such as a tunnel.
    """
    import psutil

    address = urlsplit(config.engine.base_url)
    if address.port is None or not _is_here(address.hostname or ""):
        return None
    started = []
    for pid in listeners(address.port):
        try:
            process = psutil.Process(pid)
            if "vllm" in " ".join(process.cmdline()).lower():
                started.append(process.create_time())
        except psutil.Error:  # gone meanwhile
            continue
    return min(started, default=None)


def listeners(port: int) -> set[int]:
    """Processes that listen on `port`, as far as this user may see them."""
    import psutil

    pids = set()
    for connection in psutil.net_connections(kind="tcp"):
        address = connection.laddr
        is_listening = connection.status == psutil.CONN_LISTEN and address and address.port == port
        if is_listening and connection.pid is not None:
            pids.add(connection.pid)
    return pids


def _is_here(host: str) -> bool:
    """Return whether `host` is a name or an address of this machine."""
    import psutil

    if host in ("localhost", socket.gethostname()):
        return True
    own = (address.address for addresses in psutil.net_if_addrs().values() for address in addresses)
    return host in {*own, "127.0.0.1", "::1"}
