"""How LLaMA-Factory is started, on one node or as one of several.

Its launcher splits a command line at spaces to start torchrun; paths may hold them. So torchrun is started
here, with the arguments that the launcher would give it, and with deadlines: a node that never comes, or a
process that hangs, ends the training of all with an error. A process that dies closes its connections, and
the others end at their next exchange with it.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_agent.config import Plan
from rl_agent.errors import UsageError
from rl_agent.update.inputs import TRAIN_FILE
from rl_agent.update.llamafactory.render import Setup


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the nodes this is, and where they meet: at the node of rank 0."""

    node_rank: int = 0
    master_host: str = "127.0.0.1"
    master_port: int = 29500


def place_of(nodes: int, node_rank: int, master: str | None) -> Place:
    """The place that `--nodes`, `--node-rank` and `--master HOST:PORT` describe. Raises UsageError."""
    if not 0 <= node_rank < nodes:
        raise UsageError(f"--node-rank {node_rank}: expected 0 to {nodes - 1} with --nodes {nodes}")
    if nodes == 1:
        return Place()
    host, _, port = (master or "").rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--master {master}: expected HOST:PORT of the node of rank 0")
    return Place(node_rank, host, int(port))


def training_command(plan: Plan, iteration: int, setup: Setup, place: Place) -> list[str]:
    """The words of the process that trains on this node."""
    paths = plan.paths
    yaml = paths.update_dir(iteration) / TRAIN_FILE
    words = ["-m", "rl_agent.update.llamafactory.worker", str(yaml), str(paths.metrics), str(iteration)]
    if not setup.is_distributed:
        return [sys.executable, *words]
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *rendezvous(setup.nodes, place, plan.config.llamafactory.peer_timeout_s),
        *("--nproc-per-node", str(setup.processes), "--max-restarts", "0"),
        *words,
    ]


def rendezvous(nodes: int, place: Place, peer_timeout_s: float) -> list[str]:
    """What torchrun is told about the nodes."""
    if nodes == 1:
        return ["--standalone"]
    return [
        *("--nnodes", str(nodes), "--node-rank", str(place.node_rank)),
        *("--rdzv-backend", "static", "--rdzv-conf", f"timeout={int(peer_timeout_s)}"),
        *("--master-addr", place.master_host, "--master-port", str(place.master_port)),
    ]


def merge_command(yaml: Path) -> list[str]:
    """The words of the process that merges an adapter into its base model."""
    return [sys.executable, "-m", "llamafactory.cli", "export", str(yaml)]


def training_environment(setup: Setup, environ: Mapping[str, str], cache: Path) -> dict[str, str]:
    """What LLaMA-Factory needs beyond the caller's environment. Datasets are cached under `cache`."""
    binaries = str(Path(sys.executable).parent)
    environment = dict(environ) | {
        "PATH": f"{binaries}{os.pathsep}{environ.get('PATH', os.defpath)}",
        "DISABLE_VERSION_CHECK": "1",
        "DEEPSPEED_LOG_LEVEL": environ.get("DEEPSPEED_LOG_LEVEL", "WARNING"),
        "HF_DATASETS_CACHE": str(cache),
        "TOKENIZERS_PARALLELISM": "false",  # LLaMA-Factory forks workers of its own
    }
    if not setup.is_distributed:
        environment["CUDA_VISIBLE_DEVICES"] = _first_gpu(setup, environ)
    if setup.uses_cpu:
        threads = max(1, (os.cpu_count() or 1) // setup.processes)
        environment["OMP_NUM_THREADS"] = environ.get("OMP_NUM_THREADS", str(threads))
        # Threads that spin while they wait are ruinous where anything else runs on the cores.
        environment["OMP_WAIT_POLICY"] = environ.get("OMP_WAIT_POLICY", "PASSIVE")
    return environment


def node_environment(
    setup: Setup, place: Place, interface: str | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """What a node tells its processes of the others; empty for a node alone.

    These are LLaMA-Factory's names; torchrun gives each process its own. `interface` carries what the
    processes tell each other, unless the caller's environment names another.
    """
    if setup.nodes == 1:
        return {}
    environment = {
        "FORCE_TORCHRUN": "1",
        "NNODES": str(setup.nodes),
        "NODE_RANK": str(place.node_rank),
        "NPROC_PER_NODE": str(setup.processes),
        "MASTER_ADDR": place.master_host,
        "MASTER_PORT": str(place.master_port),
    }
    return environment | interface_variables(interface, environ)


def interface_variables(interface: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """By which interface the processes of several nodes talk, where the caller's environment does not say."""
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if interface is not None else ()
    return {name: environ.get(name, interface or "") for name in names}


def _first_gpu(setup: Setup, environ: Mapping[str, str]) -> str:
    """One process sees one device: with more, Trainer would spread its batches over them by itself."""
    if setup.uses_cpu:
        return ""
    return environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
