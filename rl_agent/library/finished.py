"""Streams what is finished to programs with an event loop, and to those without one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeAlias, TypeVar

from anyio.from_thread import start_blocking_portal

T = TypeVar("T")
Give: TypeAlias = Callable[[T], Awaitable[None]]
"""Hands over what is finished; it waits while too much has not been taken."""
_MOST_WAITING = 64
"""Items that wait to be taken; with more than these, and what a collector holds, nothing new is begun."""


class FinishedStream(Generic[T]):
    """Iterates by `async for` or `for`, or returns a list by `await`; each time from the beginning."""

    def __init__(self, produce: Callable[[Give[T]], Awaitable[None]]) -> None:
        self._produce = produce

    async def __aiter__(self) -> AsyncIterator[T]:
        waiting: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
        places = asyncio.Semaphore(_MOST_WAITING)

        async def give(item: T) -> None:
            await places.acquire()
            waiting.put_nowait((item,))

        async def produce() -> Exception | None:
            try:
                await self._produce(give)
            except Exception as error:  # the consumer's, once it has taken what was finished before
                return error
            finally:
                waiting.put_nowait(None)
            return None

        owner = AsyncExitStack()
        jobs = await owner.enter_async_context(asyncio.TaskGroup())
        producing = jobs.create_task(produce(), name="collect")
        try:
            while (item := await waiting.get()) is not None:
                places.release()
                yield item[0]
            if (error := await producing) is not None:
                raise error
        finally:
            producing.cancel()
            await owner.aclose()  # without what the consumer raised, which is not of the group

    def __await__(self) -> Generator[Any, None, list[T]]:
        return self._all().__await__()

    async def _all(self) -> list[T]:
        return [item async for item in self]

    def __iter__(self) -> Iterator[T]:
        """Iterate in a thread with an event loop of its own, so that a notebook's may run."""
        end = object()
        with start_blocking_portal() as portal:
            each: Any = aiter(self)
            try:
                while (item := portal.call(anext, each, end)) is not end:
                    yield item
            finally:
                portal.call(each.aclose)
