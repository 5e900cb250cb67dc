"""Decides which connections a weight server keeps when there are too many. Pure.

    arrives ─► greets: one of few places (`unauthenticated`), which the oldest of the fullest host loses
                 │ shows the token
                 └─► is served: one of more places; if all are taken, one of the host that has most goes

So connections without a token cost such connections alone, those of the same host first; and a host that has
the token does not keep others away.
"""

from collections import Counter
from typing import Generic, TypeVar

from rl_agent.unauthenticated import Unauthenticated

V = TypeVar("V")
MOST_GREETING = 128
MOST_GREETING_A_HOST = 16


class Admission(Generic[V]):
    """The connections that greet and are served. Its owner locks every call, and closes those to drop."""

    def __init__(self, most_served: int) -> None:
        self._most_served = most_served
        self._greeting = Unauthenticated[V](at_most=MOST_GREETING, at_most_a_network=MOST_GREETING_A_HOST)
        self._served: dict[V, str] = {}

    def arrive(self, visitor: V, host: str) -> V | None:
        """Let one greet; the connection to drop for that."""
        return self._greeting.arrive(visitor, host)

    def has_room_for(self, host: str) -> bool:
        return len(self._served) < self._most_served or self._largest_beside(host) is not None

    def serve(self, visitor: V) -> tuple[bool, V | None]:
        """Serve one who has shown the token, if there is room; and the connection to drop for that."""
        host = self._greeting.leave(visitor)
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
        self._greeting.leave(visitor)
        self._served.pop(visitor, None)

    def _largest_beside(self, host: str) -> str | None:
        """Return the host with most places, if it keeps more than `host` after giving it one."""
        places = Counter(self._served.values())
        largest, most = max(places.items(), key=lambda item: item[1], default=(host, 0))
        return largest if most >= places[host] + 2 else None
