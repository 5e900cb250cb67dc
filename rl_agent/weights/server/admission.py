"""Decides which connections a weight server keeps when there are too many. Pure.

    arrives ─► greets: one of few places; if all are taken, the oldest who greets goes
                 │ shows the token
                 └─► is served: one of more places; if all are taken, one of the host that has most goes

So connections without a token cost such connections alone, those of the same host first; and a host that has
the token does not keep others away.
"""

from collections import Counter
from typing import Generic, TypeVar

V = TypeVar("V")
MOST_GREETING = 128
MOST_GREETING_A_HOST = 16


class Admission(Generic[V]):
    """Which connections may greet and be served. Its owner locks every call, and closes those to drop."""

    def __init__(self, most_served: int) -> None:
        self._most_served = most_served
        self._greeting: dict[V, str] = {}
        self._served: dict[V, str] = {}

    def arrive(self, visitor: V, host: str) -> V | None:
        """Let one greet; whom to drop for that."""
        waiting = list(self._greeting.items())
        of_host = [other for other, its_host in waiting if its_host == host]
        dropped = None
        if len(of_host) >= MOST_GREETING_A_HOST:
            dropped = of_host[0]
        elif len(waiting) >= MOST_GREETING:
            dropped = waiting[0][0]
        if dropped is not None:
            del self._greeting[dropped]
        self._greeting[visitor] = host
        return dropped

    def has_room_for(self, host: str) -> bool:
        return len(self._served) < self._most_served or self._largest_beside(host) is not None

    def serve(self, visitor: V) -> tuple[bool, V | None]:
        """Whether one who has shown the token is served, and whom to drop for that."""
        host = self._greeting.pop(visitor, None)
        if host is None or not self.has_room_for(host):
            return False, None
        dropped = None
        if len(self._served) >= self._most_served:
            largest = self._largest_beside(host)
            dropped = next(other for other, its_host in self._served.items() if its_host == largest)
            del self._served[dropped]
        self._served[visitor] = host
        return True, dropped

    def leave(self, visitor: V) -> None:
        self._greeting.pop(visitor, None)
        self._served.pop(visitor, None)

    def _largest_beside(self, host: str) -> str | None:
        """The host that has most of the places, if it has more still after giving one to `host`."""
        places = Counter(self._served.values())
        largest, most = max(places.items(), key=lambda item: item[1], default=(host, 0))
        return largest if most >= places[host] + 2 else None
