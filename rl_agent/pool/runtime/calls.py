"""Requests that are continued after a restart of the manager, by their names.

    begin ──► its tokens in the journal, every `journal_interval_s` ──► end
                │ the manager dies; the client sends the call again, or the run's requests are in the journal
                └──► begin: goes on from the tokens that the journal has

A call of the OpenAI API is its client's to send again, so the journal holds no answer of it, and nothing has
to be on the disk before a client is answered. What a call asks for decides whether it is the same one: with
another prompt, seed or limit it begins anew.
"""

import asyncio
import hashlib
import time
from array import array
from collections.abc import Iterator

from pydantic_core import to_json

from rl_agent.pool.runtime.journal import Journal, Write
from rl_agent.pool.runtime.journal_rows import CallIdentity, Key, progress_end, progress_writes
from rl_agent.pool.runtime.restore import InterruptedCall
from rl_agent.pool.runtime.service import Pool
from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.migration import can_continue
from rl_agent.pool.scheduler.records import Order, PartialResponse, Request, RequestId

MAX_NAME = 200
"""The longest name in a journal."""


def key_of(run: str, name: str, index: int) -> Key | None:
    """Return the key of one response of a call; None if the call has no name that a journal can contain."""
    key = f"{name}-{index}"
    return ("call", run, key) if name and len(key) <= MAX_NAME and key.isprintable() else None


class Calls:
    """The open requests of a pool that have a key. Without a journal nothing is remembered."""

    def __init__(self, pool: Pool, journal: Journal | None) -> None:
        self._pool, self._journal = pool, journal
        self._open: dict[Key, RequestId] = {}
        self._digests: dict[RequestId, str] = {}
        """The digests of requests whose tokens the journal has."""
        self._saved: dict[RequestId, tuple[int, int, int]] = {}
        """Tokens and characters that the journal has of each request, and its restarts."""
        self.left: dict[Key, InterruptedCall] = {}
        """The calls that were interrupted and not sent again yet."""
        self.is_over = False
        """This manager ends: what its clients lose now, they send again to the next one."""

    def begin(self, key: Key | None, order: Order) -> None:
        """Submit a request; it goes on from the tokens in the journal if it is the same call."""
        response = None if key is None or self._journal is None else self._made_before(key, order)
        if response is not None:
            self._saved[order.request_id] = (len(response.token_ids), len(response.text), 0)
        self._pool.handle(events.Submitted(order, response))

    def _made_before(self, key: Key, order: Order) -> PartialResponse | None:
        """Remember a request; return the tokens that an earlier manager sampled for this very one, if any."""
        if key in self._open or order.needs_names or not can_continue(order.params):
            return None
        self._open[key] = order.request_id
        left = self.left.pop(key, None)
        if left is None or left.deadline < self._pool.clock() or left.digest != digest_of(order):
            return None
        return left.response

    def end(self, key: Key | None, request_id: RequestId) -> None:
        """Forget a request that is over, or whose client has left; another one may have this key by now.

        Its tokens leave the journal with what is written next, and no more are written.
        """
        if key is None or self._open.get(key) != request_id or (self.is_over and key[0] == "call"):
            return
        del self._open[key]
        self._digests.pop(request_id, None)
        if self._saved.pop(request_id, None) is not None and self._journal is not None:
            self._journal.append([progress_end(key)])

    async def run(self, interval_s: float) -> None:
        """Write new tokens to the journal at each interval, until cancelled."""
        while self._journal is not None:
            await asyncio.sleep(interval_s)
            self._journal.append(self._new_progress())

    def _new_progress(self) -> Iterator[Write]:
        ahead_s = time.time() - self._pool.clock()
        for key, request_id in self._open.items():
            request = self._pool.state.requests.get(request_id)
            if request is None or (starts := self._unsaved(request)) is None:
                continue
            if request_id not in self._digests:
                self._digests[request_id] = digest_of(request.order)
            identity = CallIdentity(self._digests[request_id], ahead_s + request.order.deadline)
            yield from progress_writes(key, request, *starts, identity)

    def _unsaved(self, request: Request) -> tuple[int, int] | None:
        """Return the first token and character that the journal lacks; None if it lacks nothing."""
        start, text_start, restarts = self._saved.get(request.request_id, (0, 0, 0))
        if restarts != request.restarts:
            start = text_start = 0
        if len(request.token_ids) <= start:
            return None
        size = sum(map(len, request.texts))
        self._saved[request.request_id] = (len(request.token_ids), size, request.restarts)
        return start, text_start


def digest_of(order: Order) -> str:
    """Return a digest of everything that decides what is sampled."""
    digest = hashlib.blake2b(array("q", order.prompt_token_ids).tobytes(), digest_size=16)
    limits = {"max_tokens": order.max_tokens, "min_weight_version": order.min_weight_version}
    images = {"images": order.images} if order.images else {}
    digest.update(to_json(limits | images | {"params": dict(sorted(order.params.items()))}))
    return digest.hexdigest()
