"""How LLaMA-Factory is started.

Its launcher splits a command line at spaces to start torchrun; paths may hold them. So torchrun is started
here, with the arguments that the launcher would give it.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rl_agent.update.render import Setup


def training_command(setup: Setup, yaml: Path, *, rank: int, environ: Mapping[str, str]) -> list[str]:
    """The words of the process that trains."""
    if not setup.is_distributed:
        return [sys.executable, "-m", "llamafactory.cli", "train", str(yaml)]
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *_rendezvous(setup, rank, environ),
        *("--nproc_per_node", str(setup.processes)),
        *("-m", "llamafactory.launcher", str(yaml)),
    ]


def _rendezvous(setup: Setup, rank: int, environ: Mapping[str, str]) -> list[str]:
    if setup.nodes == 1:
        return ["--standalone"]
    return [
        *("--nnodes", str(setup.nodes)),
        *("--node_rank", str(rank)),
        *("--master_addr", environ.get("MASTER_ADDR", "127.0.0.1")),
        *("--master_port", environ.get("MASTER_PORT", "29500")),
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
        "WANDB_DISABLED": "true",  # the harness records the run itself
    }
    if not setup.is_distributed:
        environment["CUDA_VISIBLE_DEVICES"] = _first_gpu(setup, environ)
    if setup.uses_cpu:
        threads = max(1, (os.cpu_count() or 1) // setup.processes)
        environment["OMP_NUM_THREADS"] = environ.get("OMP_NUM_THREADS", str(threads))
        # Threads that spin while they wait are ruinous where anything else runs on the cores.
        environment["OMP_WAIT_POLICY"] = environ.get("OMP_WAIT_POLICY", "PASSIVE")
    return environment


def _first_gpu(setup: Setup, environ: Mapping[str, str]) -> str:
    """One process sees one device: with more, LLaMA-Factory would start torchrun by itself."""
    if setup.uses_cpu:
        return ""
    return environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
