"""Work that grows with what a model wrote, kept off the event loop on which all episodes live.

A response has as many characters as its model liked to write. Reading, decoding and parsing one takes time in
proportion, and every other episode, the heartbeat and the engine's other streams would wait for it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

SMALL = 8192
"""Characters, bytes or tokens; work on so few is done sooner than it is handed to a thread."""

P = ParamSpec("P")
T = TypeVar("T")

# Not the loop's own threads: an environment that hangs in those must not keep responses from being read.
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="off-loop")


async def off_loop(size: int, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call what takes time in proportion to `size`: in a thread, or here where that is small."""
    if size <= SMALL:
        return call(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: call(*args, **kwargs))
