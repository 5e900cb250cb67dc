"""A provider that works in another Python environment, as a process that is asked over stdin and stdout.

    reconciler ─► RemoteProvider ─► JSON lines ─► PYTHON -m …remote_serve MODULE ─► ray, sky, …

The process starts with the first call and again after it died; what was asked meanwhile fails with
ProviderError and is asked again by the reconciler. One that answers nothing for as long as a call may take
hangs: it is killed with its process group. It ends with its owner, also by `kill -9`.
"""

import asyncio
import itertools
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rl_agent.autoscaler.providers.remote_serve import MAX_LINE_BYTES
from rl_agent.paths import IMPORT_ROOT
from rl_agent.pool.demand.records import EngineKind, ProviderError, RentedMachine
from rl_agent.system.owned import end_owned, start_owned

SERVE = "rl_agent.autoscaler.providers.remote_serve"
STOP_TIMEOUT_S = 5.0
CALL_LIMIT_S = 80.0
_MACHINES = TypeAdapter(list[RentedMachine])
_ANSWER = TypeAdapter(dict[str, Any])


class RemoteProvider:
    """The provider `module` under the interpreter `python`; `async with running(…)` makes one.

    `settings` go to its `connect` as JSON, over stdin; their `manager` may change meanwhile. A call raises
    TimeoutError after `limit_s`.
    """

    def __init__(
        self,
        python: str,
        module: str,
        settings: Mapping[str, Any],
        jobs: asyncio.TaskGroup,
        limit_s: float,
    ) -> None:
        self._limit_s = limit_s
        self._answers = 0
        self._command = [python, "-P", "-m", SERVE, module]
        self._settings = settings
        self._python = python
        self._jobs = jobs
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._starting = asyncio.Lock()

    async def start(self, name: str, kind: EngineKind) -> None:
        manager = self._settings.get("manager")
        await self._ask({"call": "start", "name": name, "kind": asdict(kind), "manager": manager})

    async def stop(self, name: str) -> None:
        await self._ask({"call": "stop", "name": name})

    async def machines(self) -> list[RentedMachine]:
        try:
            return _MACHINES.validate_python(await self._ask({"call": "machines"}))
        except ValidationError as error:
            raise ProviderError(f"its list of machines cannot be read: {error.errors()[0]['msg']}") from error

    async def _ask(self, call: Mapping[str, Any]) -> Any:
        process = await self._running()
        number, answers = next(self._numbers), self._answers
        self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            assert process.stdin is not None
            async with asyncio.timeout(self._limit_s):
                process.stdin.write(json.dumps({"id": number, **call}).encode() + b"\n")
                await process.stdin.drain()
                answer = await self._waiting[number]
        except TimeoutError:
            if answers != self._answers:  # this call alone hangs; it may yet have an effect
                raise
            await end_owned(process, 0.0)
            raise ProviderError(
                f"{self._python}: the provider's process did not answer for {self._limit_s:g} s and was ended"
            ) from None
        except OSError as error:
            raise ProviderError(
                f"{self._python}: the provider's process does not read its input: {error}"
            ) from error
        finally:
            del self._waiting[number]
        if (problem := answer.get("error")) is not None:
            raise ProviderError(str(problem))
        return answer.get("result")

    async def _running(self) -> asyncio.subprocess.Process:
        async with self._starting:
            if self._process is None or self._process.returncode is not None or self._is_read_to_its_end:
                await self._end()
                self._process = await self._started()
                self._reading = self._jobs.create_task(self._read(self._process), name="provider's answers")
            return self._process

    @property
    def _is_read_to_its_end(self) -> bool:
        return self._reading is not None and self._reading.done()

    async def _started(self) -> asyncio.subprocess.Process:
        python_path = os.environ.get("PYTHONPATH")
        own = {"PYTHONPATH": f"{IMPORT_ROOT}{os.pathsep}{python_path}" if python_path else str(IMPORT_ROOT)}
        try:
            process = await start_owned(
                *self._command,
                env={**os.environ, **own},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=MAX_LINE_BYTES,
            )
        except OSError as error:
            raise ProviderError(f"{self._python} cannot be started: {error.strerror}") from error
        assert process.stdin is not None
        process.stdin.write(
            json.dumps(dict(self._settings)).encode() + b"\n"
        )  # not in its command line, which all can read
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        problem = "its process ended; stderr says why"
        try:
            while line := await process.stdout.readline():
                answer = _ANSWER.validate_json(line)
                self._answers += 1
                waiting = self._waiting.get(answer.get("id", 0))
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (ValueError, TypeError):  # no JSON, no such number, or a line without an end
            problem = "its process answers something else than JSON lines"
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result({"error": f"{self._python}: {problem}"})

    async def _end(self) -> None:
        """End the process and all it started."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._reading is not None:
            self._reading.cancel()
        assert process.stdin is not None
        await end_owned(process, STOP_TIMEOUT_S, ask=process.stdin.close)


@asynccontextmanager
async def running(
    python: str, module: str, settings: Mapping[str, Any], limit_s: float = CALL_LIMIT_S
) -> AsyncIterator[RemoteProvider]:
    """Give a provider of another environment; its process has ended when the block has."""
    async with asyncio.TaskGroup() as jobs:
        provider = RemoteProvider(python, module, settings, jobs, limit_s)
        try:
            yield provider
        finally:
            await provider._end()
