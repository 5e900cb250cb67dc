"""Serves a provider to the process that started this one: JSON lines on stdin and stdout.

    PYTHON -m rl_agent.autoscaler.providers.remote_serve MODULE

For a provider whose library has an environment of its own (Ray): PYTHON is its interpreter. This
file and `records` need the standard library alone. MODULE has `connect(settings) -> Provider`; the settings
are the first line of stdin, a JSON object, of which `manager` comes with each start, too. The process ends
with its stdin, so it does not outlive its owner.

    ► {"id": 1, "call": "start", "name": "rl-3f9a2c-1", "kind": {"name": "spot", ...}, "manager": "http://..."}
    ◄ {"id": 1, "result": null}     or {"id": 1, "error": "one line"}
"""

import asyncio
import importlib
import json
import os
import sys
from dataclasses import asdict
from typing import Any, TextIO

from rl_agent.pool.demand.records import EngineKind, Provider, ProviderError

MAX_LINE_BYTES = 2**20


async def answer(provider: Provider, question: dict[str, Any]) -> dict[str, Any]:
    """Carry out one call; what it raises becomes one line."""
    try:
        return {"id": question["id"], "result": await _call(provider, question)}
    except ProviderError as error:
        return {"id": question["id"], "error": one_line(str(error))}
    except Exception as error:  # a library's own errors end that call only
        return {"id": question["id"], "error": one_line(f"{type(error).__name__}: {error}")}


async def _call(provider: Provider, request: dict[str, Any]) -> Any:
    match request["call"]:
        case "start":
            await provider.start(request["name"], EngineKind(**request["kind"]))
        case "stop":
            await provider.stop(request["name"])
        case "machines":
            return [asdict(machine) for machine in await provider.machines()]
        case other:
            raise ProviderError(f"there is no call {other!r}")
    return None


def one_line(text: str) -> str:
    """Return a text without line breaks, in at most 500 characters."""
    return " ".join(text.split())[:500]


async def serve(
    provider: Provider, settings: dict[str, Any], requests: asyncio.StreamReader, answers: TextIO
) -> None:
    """Answer calls, several at once, until the requests end."""

    async def reply(request: dict[str, Any]) -> None:
        answers.write(json.dumps(await answer(provider, request)) + "\n")
        answers.flush()

    async with asyncio.TaskGroup() as jobs:
        running: list[asyncio.Task[None]] = []
        while line := await requests.readline():
            running = [job for job in running if not job.done()]
            request = json.loads(line)
            if request.get("manager"):  # it may have moved
                settings["manager"] = request["manager"]
            running.append(jobs.create_task(reply(request)))
        for job in running:
            job.cancel()


async def main(module: str, answers: TextIO) -> None:
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    settings = json.loads(await requests.readline())
    provider: Provider = importlib.import_module(module).connect(settings)
    await serve(provider, settings, requests, answers)
    os._exit(0)  # a library that hangs in a thread must not keep this process


def _own_stdout() -> TextIO:
    """Return what stdout was, for the answers alone; what a library prints goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], _own_stdout()))
