"""Placement policies: classes that score engines; a request goes to the engine with the lowest score.

    least_work    seconds until it has done what it has: expected tokens left / measured tokens per second
    least_loaded  share of its places that are taken
    round_robin   the one that was picked longest ago

A class of the user's (`pool.policy=package.module:Class`) is written like these. It is made once, without
arguments, and says by the signature of its method what it looks at, and by that what a decision costs:

    def score(self, engine)            asked when an engine changes; a decision takes the best from a heap
    def score(self, engine, request)   asked for every request, of every engine that may take it

It returns a number that is not NaN, and the same one for the same values: only then does the simulator decide
as the pool does. It is asked only of engines that may take the request: which of them are healthy, have room
and serve weights that are new enough is not its decision. Where it scores two alike, least_work decides.
"""

import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

from rl_agent.errors import first_line

PolicyMaker = Callable[[], Any]
"""Makes a policy; a class."""


class PolicyFault(Exception):
    """A policy raises, or returns no number."""


class EngineView(NamedTuple):
    """An engine as a policy sees it. A value: changing it is impossible, keeping it is harmless."""

    engine_id: str
    """New with every start of the engine."""
    name: str
    """The same after a restart on the same machine."""
    kind: str
    """The name in `pool.scale.kinds`; empty: it came by itself."""
    price_per_hour: float
    """Dollars, as its worker named them; 0 where it named none."""
    capacity: int
    """Requests it may run at once."""
    running: int
    """Requests that the pool has sent there and that have not ended."""
    expected_tokens: float
    """The tokens that these are expected to need still."""
    waiting: int
    """Requests in the engine's own queue, as it reported last."""
    kv_use: float
    """Share of its KV cache that is taken, as it reported last."""
    tokens_per_s: float
    """Measured throughput, above 0; of an engine that was not measured yet, that of the others."""
    request_tokens_per_s: float
    """Measured rate of one request alone; 0 until measured."""
    weight_version: int
    last_pick: int
    """The pool's count of requests sent when it was picked last; 0: never."""


class RequestView(NamedTuple):
    """A request as a policy sees it."""

    run: str
    group: str
    """Requests of a run with the same group have the same prompt; empty: it has no siblings."""
    episode: str
    """Names the episode whose turn it is, where the run says so; else empty."""
    prompt_token_ids: tuple[int, ...]
    made_tokens: int
    """Tokens of the response that it has already, from an engine that it left."""
    max_tokens: int
    expected_tokens: float
    """The tokens that the response is expected to need still."""
    min_weight_version: int
    moves: int
    """The number of times it was moved."""
    is_read_along: bool
    """Somebody waits for every token."""
    siblings_at: str
    """`engine_id` to which the last one of its group went; empty: none did."""


class LeastWork:
    def score(self, engine: EngineView) -> float:
        return (engine.expected_tokens + engine.waiting) / engine.tokens_per_s

    def response_cost(self, engine: EngineView, request: RequestView) -> float:
        """Return by how much one response like this raises the score of an engine.

        A sibling follows the others of its group to an engine that scores at most `affinity_slack` times
        this above the best. A class without this method keeps no siblings together.
        """
        return request.expected_tokens / engine.tokens_per_s


class LeastLoaded:
    def score(self, engine: EngineView) -> float:
        return engine.running / engine.capacity

    def response_cost(self, engine: EngineView, request: RequestView) -> float:
        return 1 / engine.capacity


class RoundRobin:
    def score(self, engine: EngineView) -> float:
        return engine.last_pick


BUILT_IN: dict[str, PolicyMaker] = {
    "least_work": LeastWork,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
}


def looks_at_requests(policy: Any) -> bool:
    """Return whether the policy scores an engine for a request. Raises TypeError for any other signature."""
    signature = inspect.signature(policy.score)
    for arguments in (2, 1):
        try:
            signature.bind(*[None] * arguments)
        except TypeError:
            continue
        return arguments == 2
    raise TypeError("score takes (self, engine) or (self, engine, request)")


def number_from(method: Callable[..., Any], *values: EngineView | RequestView) -> float:
    """Ask a policy for a number. Raises PolicyFault."""
    name = getattr(method, "__name__", "score")
    try:
        answer = method(*values)
        is_number = type(answer) is float or isinstance(answer, Real)
        number = float(answer) if is_number else math.nan
    except (Exception, SystemExit) as error:  # a user's own class
        raise PolicyFault(f"{name} raises {first_line(error)}") from None
    if math.isnan(number):
        what = "NaN" if is_number else type(answer).__name__
        raise PolicyFault(f"{name} returns {what}, not a number")
    return number
