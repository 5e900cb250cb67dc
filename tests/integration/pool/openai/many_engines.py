"""Runs many simulated engines in one process; their URLs are the first line of stdout, as JSON.

python -m tests.integration.pool.openai.many_engines COUNT CHUNK
"""

import asyncio
import json
import sys
from contextlib import AsyncExitStack

import uvloop

from rl_agent.system.files import allow_open_files
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import StreamingEngine, serving


async def main(count: int, chunk: int) -> None:
    allow_open_files()
    async with AsyncExitStack() as stack:
        engines = [StreamingEngine(Behaviour(), chunk=chunk) for _ in range(count)]
        served = [await stack.enter_async_context(serving(engine)) for engine in engines]
        print(json.dumps([engine.url for engine in served]), flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until the test closes it


if __name__ == "__main__":
    uvloop.run(main(*map(int, sys.argv[1:])))
