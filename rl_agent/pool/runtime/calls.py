"""Calls of the OpenAI API that are continued after a restart of the manager, by their request ids.

    begin ──► its tokens in the journal, every `journal_interval_s` ──► end
                │ the manager dies; the client sends the call again, to the next manager
                └──► begin: goes on from the tokens that the journal has

A batch is submitted once and waited for; a call is its client's to send again. So the journal holds no answer
of a call, and nothing has to be on the disk before a client is answered. What a call asks for decides whether
it is the same one: with another prompt, seed or limit it begins anew.
"""

import hashlib
from array import array
from collections.abc import Iterator

from pydantic_core import to_json

from rl_agent.pool.runtime.journal_rows import Key
from rl_agent.pool.runtime.restore import InterruptedCall
from rl_agent.pool.scheduler.migration import can_continue
from rl_agent.pool.scheduler.records import Order, PartialResponse, Request, RequestId
from rl_agent.pool.scheduler.state import PoolState

MAX_NAME = 200
"""The longest name in a journal."""


def key_of(run: str, name: str, index: int) -> Key | None:
    """Return the key of one response of a call; None if the call has no name that a journal can contain."""
    key = f"{name}-{index}"
    return (run, key) if name and len(key) <= MAX_NAME and key.isprintable() else None


class Calls:
    def __init__(self) -> None:
        self._open: dict[Key, RequestId] = {}
        self._digests: dict[RequestId, str] = {}
        """The digests of requests whose tokens the journal has."""
        self.left: dict[Key, InterruptedCall] = {}
        """The calls that were interrupted and not sent again yet."""

    def begin(self, key: Key, order: Order, now: float) -> PartialResponse | None:
        """Register a call; return the tokens that an earlier manager sampled for this very call, if any."""
        if key in self._open or order.needs_names or not can_continue(order.params):
            return None
        self._open[key] = order.request_id
        left = self.left.pop(key, None)
        if left is None or left.deadline < now or left.digest != digest_of(order):
            return None
        return left.made

    def end(self, key: Key, request_id: RequestId) -> bool:
        """Remove a call that is over; False if another request has this key."""
        if self._open.get(key) != request_id:
            return False
        del self._open[key]
        self._digests.pop(request_id, None)
        return True

    def growing(self, state: PoolState) -> Iterator[tuple[Key, Request]]:
        """Yield the open calls for which tokens were sampled."""
        for key, request_id in self._open.items():
            request = state.requests.get(request_id)
            if request is not None and request.token_ids:
                yield key, request

    def digest(self, order: Order) -> str:
        """Return `digest_of` the order, computed once for an open call."""
        if order.request_id not in self._digests:
            self._digests[order.request_id] = digest_of(order)
        return self._digests[order.request_id]


def digest_of(order: Order) -> str:
    """Return a digest of everything that decides what is sampled."""
    digest = hashlib.blake2b(array("q", order.prompt_token_ids).tobytes(), digest_size=16)
    said = {"max_tokens": order.max_tokens, "min_weight_version": order.min_weight_version}
    digest.update(to_json(said | {"params": dict(sorted(order.params.items()))}))
    return digest.hexdigest()
