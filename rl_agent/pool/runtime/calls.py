"""Calls of the OpenAI API that outlive a manager, by the names that their clients gave them.

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
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from rl_agent.pool.runtime.results import Zero, made_of, progress_record
from rl_agent.pool.scheduler.migration import can_continue
from rl_agent.pool.scheduler.records import Made, Order, Request, RequestId
from rl_agent.pool.scheduler.state import PoolState

Key = tuple[str, str]
"""The run, and the call's name in it."""


MAX_NAME = 200
"""Of what a journal holds."""


def key_of(run: str, name: str, index: int) -> Key | None:
    """Of one response of a call; None if the call has no name, or one that a journal cannot hold."""
    key = f"{name}-{index}"
    return (run, key) if name and len(key) <= MAX_NAME and key.isprintable() else None


@dataclass(frozen=True, slots=True)
class LeftCall:
    """A call that an earlier manager had begun; its deadline by the pool's clock."""

    digest: str
    deadline: float
    made: Made


class Calls:
    def __init__(self) -> None:
        self._open: dict[Key, RequestId] = {}
        self._digests: dict[RequestId, str] = {}
        """Of requests whose tokens the journal has."""
        self.left: dict[Key, LeftCall] = {}
        """Not sent again yet."""

    def begin(self, key: Key, order: Order, now: float) -> Made | None:
        """What was sampled for this very call before, if anything was."""
        if key in self._open or order.needs_names or not can_continue(order.params):
            return None
        self._open[key] = order.request_id
        left = self.left.pop(key, None)
        if left is None or left.deadline < now or left.digest != digest_of(order):
            return None
        return left.made

    def end(self, key: Key, request_id: RequestId) -> bool:
        """Whether this request was the call, which is over now."""
        if self._open.get(key) != request_id:
            return False
        del self._open[key]
        self._digests.pop(request_id, None)
        return True

    def growing(self, state: PoolState) -> Iterator[tuple[Key, Request]]:
        """Open calls of which tokens were sampled."""
        for key, request_id in self._open.items():
            request = state.requests.get(request_id)
            if request is not None and request.token_ids:
                yield key, request

    def call_of(self, request: Request, made: Made) -> LeftCall:
        order = request.order
        if order.request_id not in self._digests:
            self._digests[order.request_id] = digest_of(order)
        return LeftCall(self._digests[order.request_id], order.deadline, made)

    def records(self, state: PoolState, now: float, zero: Zero) -> list[dict[str, Any]]:
        """What a journal must hold of them."""
        growing = [(key, self.call_of(request, made_of(request))) for key, request in self.growing(state)]
        self.left = {key: left for key, left in self.left.items() if left.deadline >= now}
        return [call_record(key, call, zero) for key, call in (*self.left.items(), *growing)]


def call_record(key: Key, call: LeftCall, zero: Zero, start: int = 0, text_start: int = 0) -> dict[str, Any]:
    record = progress_record(*key, call.made, start, text_start)
    return record | {"kind": "call", "digest": call.digest} | zero.fields(call.deadline)


def ended_call_record(key: Key) -> dict[str, Any]:
    return {"kind": "call_ended", "run": key[0], "id": key[1]}


def digest_of(order: Order) -> str:
    """Of all that decides what is sampled."""
    digest = hashlib.blake2b(array("q", order.prompt_token_ids).tobytes(), digest_size=16)
    said = {"max_tokens": order.max_tokens, "min_weight_version": order.min_weight_version}
    digest.update(to_json(said | {"params": dict(sorted(order.params.items()))}))
    return digest.hexdigest()
