"""The GPUs of this machine: how many are visible, what their memory holds, who holds it.

Reads the vendor's own tool (`nvidia-smi`, `rocm-smi`); never touches a device or a process.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rl_agent.system.processes import command_line

Run = Callable[[Sequence[str]], str | None]
_TOOL_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Memory in use on one GPU."""

    index: str
    used_mib: int
    total_mib: int = 0


def run_tool(argv: Sequence[str]) -> str | None:
    """Return the output of a tool; None if it is absent, fails or hangs."""
    try:
        done = subprocess.run(  # the tools are the two named above
            argv, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def visible_indices(environ: Mapping[str, str]) -> list[str] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES (indices or UUIDs); None where it is not set."""
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return None
    entries = [entry.strip() for entry in environ["CUDA_VISIBLE_DEVICES"].split(",")]
    if "-1" in entries:  # CUDA ignores what follows a negative index
        entries = entries[: entries.index("-1")]
    return [entry for entry in entries if entry and entry not in ("NoDevFiles", "void")]


def count_gpus(environ: Mapping[str, str] = os.environ, run: Run = run_tool) -> int:
    """CUDA_VISIBLE_DEVICES > nvidia-smi > rocm-smi > 0."""
    visible = visible_indices(environ)
    if visible is not None:
        return len(visible)
    listed = run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"])
    if listed is not None:
        return len(listed.split())
    listed = run(["rocm-smi", "--showid", "--csv"])
    return sum(line.startswith("card") for line in listed.splitlines()) if listed else 0


def memory_in_use(environ: Mapping[str, str] = os.environ, run: Run = run_tool) -> list[GpuUse]:
    """Memory used on every visible GPU; empty where no tool can tell."""
    text = run(
        ["nvidia-smi", "--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits"]
    )
    visible = visible_indices(environ)
    uses = []
    for line in (text or "").splitlines():
        index, uuid, used, total = (part.strip() for part in line.split(","))
        is_visible = visible is None or index in visible or any(uuid.startswith(v) for v in visible)
        if is_visible and used.isdigit():
            uses.append(GpuUse(index, int(used), int(total) if total.isdigit() else 0))
    return uses


def smallest_memory_gib(environ: Mapping[str, str] = os.environ, run: Run = run_tool) -> float:
    """Return the memory of the smallest visible GPU; 0 where no tool can tell."""
    return min((use.total_mib / 1024 for use in memory_in_use(environ, run)), default=0.0)


def holders(run: Run = run_tool) -> list[str]:
    """Return `pid 123 (python -m ...), 4096 MiB` for every process that holds GPU memory."""
    text = run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"])
    processes = []
    for line in (text or "").splitlines():
        pid, used = (part.strip() for part in line.split(",")[:2])
        processes.append(f"pid {pid} ({command_line(int(pid))}), {used} MiB" if pid.isdigit() else line)
    return processes
