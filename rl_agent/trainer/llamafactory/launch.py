"""Builds the commands and environments that start LLaMA-Factory, on one node or on several.

LLaMA-Factory's launcher splits a command line at spaces, which paths may contain. So torchrun is started
directly, with the launcher's arguments and with deadlines: a node that never comes, or a process that hangs,
ends the training on all nodes with an error. A process that dies closes its connections, and the others end
at their next communication with it.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_agent.config.plan import Plan
from rl_agent.errors import UsageError
from rl_agent.trainer.llamafactory.inputs import TRAIN_FILE
from rl_agent.trainer.llamafactory.render import TrainingSetup


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The rank of this node in a training, and the address at which the nodes meet (that of rank 0)."""

    node_rank: int = 0
    master_host: str = "127.0.0.1"
    master_port: int = 29500


def rendezvous_of(nodes: int, node_rank: int, master: str | None) -> Rendezvous:
    """Parse `--nodes`, `--node-rank` and `--master HOST:PORT`. Raises UsageError."""
    if not 0 <= node_rank < nodes:
        raise UsageError(f"--node-rank {node_rank}: expected 0 to {nodes - 1} with --nodes {nodes}")
    if nodes == 1:
        return Rendezvous()
    host, _, port = (master or "").rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--master {master}: expected HOST:PORT of the node of rank 0")
    return Rendezvous(node_rank, host, int(port))


def training_command(plan: Plan, iteration: int, setup: TrainingSetup, meeting: Rendezvous) -> list[str]:
    """Return the command that trains on this node."""
    paths = plan.paths
    yaml = paths.update_dir(iteration) / TRAIN_FILE
    words = ["-m", "rl_agent.trainer.llamafactory.worker", str(yaml), str(paths.metrics), str(iteration)]
    if not setup.is_distributed:
        return [sys.executable, *words]
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *rendezvous_arguments(setup.nodes, meeting, plan.config.llamafactory.peer_timeout_s),
        *("--nproc-per-node", str(setup.processes), "--max-restarts", "0"),
        *words,
    ]


def rendezvous_arguments(nodes: int, meeting: Rendezvous, peer_timeout_s: float) -> list[str]:
    """Return torchrun's arguments about the nodes."""
    if nodes == 1:
        return ["--standalone"]
    return [
        *("--nnodes", str(nodes), "--node-rank", str(meeting.node_rank)),
        *("--rdzv-backend", "static", "--rdzv-conf", f"timeout={int(peer_timeout_s)}"),
        *("--master-addr", meeting.master_host, "--master-port", str(meeting.master_port)),
    ]


def merge_command(yaml: Path) -> list[str]:
    """Return the command that merges an adapter into its base model."""
    return [sys.executable, "-m", "llamafactory.cli", "export", str(yaml)]


def training_environment(setup: TrainingSetup, environ: Mapping[str, str], cache: Path) -> dict[str, str]:
    """Return the environment of LLaMA-Factory, made from the caller's; `cache` is for datasets."""
    binaries = str(Path(sys.executable).parent)
    environment = dict(environ) | {
        "PATH": f"{binaries}{os.pathsep}{environ.get('PATH', os.defpath)}",
        "DISABLE_VERSION_CHECK": "1",
        "PYTHONSAFEPATH": "1",
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


def interface_variables(interface: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the network interface, unless the caller's environment sets them."""
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if interface is not None else ()
    return {name: environ.get(name, interface or "") for name in names}


def _first_gpu(setup: TrainingSetup, environ: Mapping[str, str]) -> str:
    """Show a single process one device: Trainer would spread its batches over several by itself."""
    if setup.uses_cpu:
        return ""
    return environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
