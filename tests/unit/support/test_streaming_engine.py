"""The simulated engine leaves no open connection behind, whenever it ends."""

import asyncio
import gc
import socket

from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import StreamingEngine, start_engine


def test_a_client_that_connects_at_the_engines_end_leaves_no_transport():
    async def connect_and_end(ticks):
        served = await start_engine(StreamingEngine(Behaviour()))
        await asyncio.sleep(0.01)
        with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))):
            for _ in range(ticks):
                await asyncio.sleep(0)
            await served.kill()

    for ticks in range(8):
        asyncio.run(connect_and_end(ticks))
    gc.collect()
