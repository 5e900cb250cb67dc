"""The process of an engine: its command, its process group, its end.

The group is the worker's to end, and ends with it: the kernel sends TERM to the engine if the worker is
killed. Nothing else is ever signalled.
"""

import asyncio
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.server import VLLM_SERVE
from rl_agent.engine.vllm_serve import HELD
from rl_agent.system.owned import end_owned, start_owned
from rl_agent.weights.load.vllm_load import VllmServer
from rl_agent.weights.load.vllm_names import SLOTS, WORKER_EXTENSION

STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """The command of an engine; the model and the port are filled in at every start."""

    kind: str
    """`vllm` or `sglang`."""
    host: str
    api_key: str | None
    extra: tuple[str, ...]
    environment: Mapping[str, str]
    loads_weights: bool = False
    """True if it takes new weights as it runs: by routes that ask for no key, so on loopback only."""
    python: str = sys.executable
    """The interpreter that has the engine: SGLang's pins do not go with vLLM's in one environment."""
    adapter_slots: int = 1
    """The number of runs that share a vLLM, each with an adapter of its own."""

    def words(self, model: str, port: int) -> list[str]:
        where = ("--host", self.host, "--port", str(port))
        if self.kind == "sglang":
            key = ("--api-key", self.api_key) if self.api_key else ()
            module = ["-m", "sglang.launch_server", "--model-path", model, "--enable-metrics"]
            return [self.python, *module, *where, *key, *self.extra]
        loader = ("--worker-extension-cls", WORKER_EXTENSION) if self.loads_weights else ()
        slots = ("--enable-lora", "--max-loras", str(self.adapter_slots)) if self.adapter_slots > 1 else ()
        return [self.python, *VLLM_SERVE, model, *loader, *slots, *where, *self.extra]

    def environ(self) -> dict[str, str]:
        key = {"VLLM_API_KEY": self.api_key} if self.api_key and self.kind == "vllm" else {}
        # SGLang drops what it has seen of images for no new weights, so it is to keep none of it.
        mode = {"SGLANG_VLM_CACHE_SIZE_MB": "0"} if self.kind == "sglang" else {"VLLM_SERVER_DEV_MODE": "1"}
        safe = {"PYTHONSAFEPATH": "1"}  # it starts in the caller's folder
        slots = {SLOTS: str(self.adapter_slots)} if self.adapter_slots > 1 else {}
        return {**self.environment, **safe, **key, **slots, **(mode if self.loads_weights else {})}


class EngineProcess:
    """One running engine."""

    slot = 0
    """The slot of the adapter that requests are for."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, model: str) -> None:
        self.process = process
        self.url = url
        self.model = model

    @classmethod
    async def start(
        cls, command: EngineCommand, model: str, log: Path, *, is_held: bool = False
    ) -> "EngineProcess":
        """Start it; one that is held uses no GPU before `release`, and ends with its owner."""
        port = free_port(command.host)
        held = {HELD: "1"} if is_held else {}
        with log.open("ab") as output:
            process = await start_owned(
                *command.words(model, port),
                orphan_signal=signal.SIGTERM,
                env=command.environ() | held,
                stdin=asyncio.subprocess.PIPE if is_held else asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        host = f"[{command.host}]" if ":" in command.host else command.host
        return cls(process, f"http://{host}:{port}", model)

    def vllm(self, session: aiohttp.ClientSession) -> VllmServer:
        """Return the routes of a vLLM that concern its weights."""
        return VllmServer(session, self.url, self.model)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_status(self) -> int | None:
        return self.process.returncode

    def release(self) -> None:
        """Let a held engine go on; nothing where it is not held, or has ended."""
        if self.process.stdin is not None:
            self.process.stdin.write(b"\n")
            self.process.stdin.close()

    async def wait(self) -> int:
        return await self.process.wait()

    async def lose(self) -> None:
        """End an engine that cannot serve any more, for all who share it."""

    async def end(self) -> None:
        """Send TERM, then KILL, to the whole process group, even if its leader is dead."""
        await end_owned(self.process, STOP_TIMEOUT_S)


def gpu_environment(gpus: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {})}


def describe_exit(status: int) -> str:
    """Return `exit status 1`, or the name of the signal."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
