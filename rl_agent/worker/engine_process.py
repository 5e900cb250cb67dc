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

from rl_agent.cluster.shared_fs.address import free_port
from rl_agent.engine.server import VLLM_SERVE
from rl_agent.engine.vllm_serve import HELD
from rl_agent.system.owned import end_owned, start_owned
from rl_agent.weights.load.vllm_names import WORKER_EXTENSION

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

    def words(self, model: str, port: int) -> list[str]:
        where = ("--host", self.host, "--port", str(port))
        if self.kind == "sglang":
            key = ("--api-key", self.api_key) if self.api_key else ()
            module = ["-m", "sglang.launch_server", "--model-path", model, "--enable-metrics"]
            return [self.python, *module, *where, *key, *self.extra]
        loader = ("--worker-extension-cls", WORKER_EXTENSION) if self.loads_weights else ()
        return [self.python, *VLLM_SERVE, model, *loader, *where, *self.extra]

    def environ(self) -> dict[str, str]:
        key = {"VLLM_API_KEY": self.api_key} if self.api_key and self.kind == "vllm" else {}
        # SGLang drops what it has seen of images for no new weights, so it is to keep none of it.
        mode = {"SGLANG_VLM_CACHE_SIZE_MB": "0"} if self.kind == "sglang" else {"VLLM_SERVER_DEV_MODE": "1"}
        safe = {"PYTHONSAFEPATH": "1"}  # it starts in the caller's folder
        return {**self.environment, **safe, **key, **(mode if self.loads_weights else {})}


class EngineProcess:
    """One running engine."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, model: str) -> None:
        self._process = process
        self.port = port
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
        return cls(process, port, model)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        return self._process.returncode

    def release(self) -> None:
        """Let a held engine go on; nothing where it is not held, or has ended."""
        if self._process.stdin is not None:
            self._process.stdin.write(b"\n")
            self._process.stdin.close()

    async def wait(self) -> int:
        return await self._process.wait()

    async def end(self) -> None:
        """Send TERM, then KILL, to the whole process group, even if its leader is dead."""
        await end_owned(self._process, STOP_TIMEOUT_S)


def gpu_environment(gpus: str | None, environ: Mapping[str, str]) -> dict[str, str]:
    return {**environ, **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {})}


def describe_exit(status: int) -> str:
    """Return `exit status 1`, or the name of the signal."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
