"""State of the scheduler, and the operations that several of its modules use.

`PoolState` belongs to `machine.step`; nothing else changes it.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise

from rl_agent.pool.scheduler import crash_suspects
from rl_agent.pool.scheduler.events import Abort, Ended, EngineChanged, PoolCommand, SetAside
from rl_agent.pool.scheduler.length_model import Lengths
from rl_agent.pool.scheduler.migration import can_continue, finish_of_tokens
from rl_agent.pool.scheduler.placement import Placement
from rl_agent.pool.scheduler.records import (
    Account,
    Departure,
    Engine,
    EngineState,
    EngineTotals,
    FailureKind,
    PoolRules,
    Request,
    RequestId,
    RequestState,
    Weights,
)

MAX_MODELS = 1024
FLAP_WINDOW_S = 300.0
"""Deaths of engines of one name within this count together."""


class PoolState:
    """The state of a pool. Built empty, changed by `step` only."""

    def __init__(self, rules: PoolRules) -> None:
        self.rules = rules
        self.now = 0.0
        """The time of the event that is being applied."""
        self.commands: list[PoolCommand] = []
        """The commands that the event has led to so far."""
        self.engines: dict[str, Engine] = {}
        """Living engines; one that is gone is dropped once its end was announced."""
        self.departed: deque[Engine] = deque(maxlen=256)
        self.requests: dict[RequestId, Request] = {}
        self.models: deque[str] = deque(maxlen=MAX_MODELS)
        """Names of all that it has served, the present one last."""
        self.model_version = 0
        """The version of the folder or hub name `model`: an engine that was just started serves it."""
        self.weights: Weights | None = None
        """The weights published since, if any."""
        self.publisher = 0
        """The newest publisher's number: what one with a lower one announces is refused; 0: there is none."""
        self.account = Account()
        self.placement = Placement(rules, self.engines)
        self.lengths = Lengths()
        self.queues: dict[str, list[tuple[int, RequestId]]] = {}
        """Waiting requests of each run that has any, oldest submission first; stale entries are skipped."""
        self.at_engines: Counter[str] = Counter()
        """Requests of each run that are at an engine, if any: the run with the fewest goes next."""
        self.affinity: dict[tuple[str, str], str] = {}
        self.deaths_of_name: dict[str, list[float]] = {}
        self.wrong_answers_of: dict[str, dict[RequestId, float]] = {}
        """Requests that engines of a name answered wrongly, and when (see `quarantine`)."""
        self.quarantined_until: dict[str, float] = {}
        """The end of each engine's quarantine, by its name."""
        self.held: dict[int, list[tuple[int, RequestId]]] = {}
        """Waiting requests by the weight version they need, for which no engine had that and room."""
        self.begun: dict[int, list[tuple[int, RequestId]]] = {}
        """Waiting requests that only the version which began them may go on with (see `single_version`)."""
        self.episodes: dict[tuple[str, str], tuple[int, str]] = {}
        """Version and engine of an episode's newest turn, by run and name; what began first comes first."""
        self.suspects: deque[RequestId] = deque()
        """Waiting requests under which an engine died: each is tried alone (see `crash_suspects`)."""
        self.timers: list[tuple[float, int, str, str | RequestId, int]] = []
        self.unrelated_deaths = 0
        self.numbers = count()
        self.measured_at = 0.0
        self.is_measuring = False

    @property
    def model(self) -> str:
        """Return the model that engines must serve; empty before the first engine if no setting names it."""
        return self.models[-1] if self.models else ""

    @model.setter
    def model(self, name: str) -> None:
        if name in self.models:
            self.models.remove(name)
        self.models.append(name)

    @property
    def weight_version(self) -> int:
        """Return the weight version that engines must serve."""
        return self.weights.weight_version if self.weights else self.model_version

    def living(self, state: EngineState) -> Iterator[Engine]:
        return (engine for engine in self.engines.values() if engine.state is state)

    def wake_at(self) -> float | None:
        """Return when the next Tick is due; None if no timer is set."""
        return self.timers[0][0] if self.timers else None


def totals_of(state: PoolState, now: float) -> EngineTotals:
    """Return the totals over all engines that this manager has had."""
    totals = replace(state.account.gone)
    for engine in state.engines.values():
        totals.add(engine, now)
    return totals


def set_timer(state: PoolState, when: float, kind: str, of: str | RequestId, attempt: int = 0) -> None:
    heapq.heappush(state.timers, (when, next(state.numbers), kind, of, attempt))


def change_engine(state: PoolState, engine: Engine, to: EngineState, reason: str) -> None:
    if engine.idle_since is not None:
        engine.idle_s += state.now - engine.idle_since
        engine.idle_since = None
    engine.state, engine.reason = to, reason
    state.commands.append(EngineChanged(engine.engine_id, to, reason))
    state.placement.changed(engine, state.now)


def renew_lease(state: PoolState, engine: Engine) -> None:
    """Renew the lease of an engine that answered or sent something."""
    engine.lease_until = max(engine.lease_until, state.now + state.rules.lease_s)


def doubt(state: PoolState, engine: Engine, problem: str) -> None:
    """Send no new requests to an engine until it answers."""
    engine.is_doubted, engine.doubted_at, engine.reason = True, state.now, problem
    state.placement.changed(engine, state.now)


def end_engine(state: PoolState, engine: Engine, reason: str, *, is_crash: bool) -> None:
    """Remove an engine; its requests continue elsewhere, or fail if they are what crashes engines."""
    if is_crash:
        state.account.engine_deaths += 1
        recent = [t for t in state.deaths_of_name.get(engine.offer.name, []) if state.now - t < FLAP_WINDOW_S]
        state.deaths_of_name[engine.offer.name] = [*recent, state.now]
        for request_id in engine.running:
            crash_suspects.broke(state.requests[request_id], engine, state.rules)
    stuck = [state.requests[request_id] for request_id in engine.broken if request_id in state.requests]
    state.unrelated_deaths += is_crash and not stuck
    for request in stuck:
        if is_crash:
            crash_suspects.died(request, engine, state.unrelated_deaths)
        else:
            crash_suspects.lives(request, engine)
    change_engine(state, engine, EngineState.GONE, reason)
    move_all(state, engine, reason)
    state.placement.changed(engine, state.now)
    state.account.gone.add(engine, state.now)
    state.departed.append(state.engines.pop(engine.engine_id))
    for request in stuck:
        if request.is_open and crash_suspects.is_cause_of_crashes(
            request, state.rules, state.unrelated_deaths
        ):
            reason = crash_suspects.reason(request)
            fail(state, request, FailureKind.CRASHES_ENGINES, reason)


def move_all(state: PoolState, engine: Engine, reason: str) -> None:
    for request_id in list(engine.running):
        move(state, state.requests[request_id], reason)


def move(state: PoolState, request: Request, reason: str, *, is_at_engine: bool = True) -> None:
    """Return a running request to the queue with the tokens it has, before everything submitted later."""
    engine = release(state, request)
    if is_at_engine:
        state.commands.append(Abort(request.request_id, request.attempt, engine.engine_id))
    state.account.moves += 1
    request.moves += 1
    request.left = Departure(engine.offer.name, reason, state.now)
    try:
        is_kept = can_continue(request.order.params)
        ended = finish_of_tokens(request) if is_kept else ""
    except Exception as error:  # the others of its engine have to go on
        set_aside(state, request, error)
        return
    if not is_kept:
        throw_away(state, request)
    elif ended:
        # The last token arrived, the word that it was the last did not: going on would run past the end.
        end(state, request, RequestState.COMPLETED, finish=ended)
        return
    enqueue(state, request)


def set_aside(state: PoolState, request: Request, error: Exception) -> None:
    """Fail a request that the scheduler cannot handle, wherever it is."""
    reason = f"the scheduler cannot handle it: {type(error).__name__}: {error}"
    state.commands.append(SetAside(f"request {request.request_id}: {reason}"))
    for engine in state.engines.values():
        if request.request_id in engine.running:
            del engine.running[request.request_id]
            state.commands.append(Abort(request.request_id, request.attempt, engine.engine_id))
            if engine.suspect == request.request_id:
                engine.suspect = None
            state.placement.changed(engine, state.now)
    running = (request_id for engine in state.engines.values() for request_id in engine.running)
    state.at_engines = Counter(state.requests[request_id].order.run for request_id in running)
    request.failure_kind, request.failure = FailureKind.INTERNAL, reason
    end(state, request, RequestState.FAILED, finish="")


def throw_away(state: PoolState, request: Request) -> None:
    """Throw away the tokens of a request: it begins anew."""
    bounds = [*(span.start for span in request.spans), len(request.token_ids)]
    for span, (start, end) in zip(request.spans, pairwise(bounds), strict=True):
        owner = state.engines.get(span.engine_id, state.account.gone)
        owner.useful_tokens -= end - start
        owner.recomputed_tokens += end - start
    for values in (request.token_ids, request.logprobs, request.texts, request.names, request.spans):
        del values[:]
    request.restarts += 1


def begun_with(state: PoolState, request: Request) -> int | None:
    """Return the only weight version that may continue a request; None if any may."""
    if state.weights is None or state.weights.finish_within_s is None or request.order.is_read_along:
        return None
    if request.spans:
        return request.spans[-1].weight_version
    version, _ = state.episodes.get(request.episode, (-1, ""))
    return version if version >= request.order.min_weight_version else None


def enqueue(state: PoolState, request: Request) -> None:
    request.state, request.engine_id = RequestState.QUEUED, None
    if crash_suspects.is_suspect(request):
        state.suspects.append(request.request_id)
        return
    begun = begun_with(state, request)
    queue = (
        state.queues.setdefault(request.order.run, []) if begun is None else state.begun.setdefault(begun, [])
    )
    heapq.heappush(queue, (request.number, request.request_id))


def release(state: PoolState, request: Request) -> Engine:
    """Remove a request from its engine."""
    engine = state.engines[request.engine_id or ""]
    del engine.running[request.request_id]
    state.at_engines[request.order.run] -= 1
    if not state.at_engines[request.order.run]:
        del state.at_engines[request.order.run]
    sampled = len(request.token_ids) - request.attempt_start
    engine.work = max(0.0, engine.work - max(0.0, request.expected - sampled)) if engine.running else 0.0
    if engine.suspect == request.request_id:
        engine.suspect = None
    if not engine.running and engine.state is EngineState.READY:
        engine.idle_since = state.now
    state.placement.changed(engine, state.now)
    return engine


def fail(
    state: PoolState,
    request: Request,
    kind: FailureKind,
    reason: str,
    *,
    is_at_engine: bool = True,
) -> None:
    if request.state is RequestState.RUNNING:
        engine = release(state, request)
        if is_at_engine:
            state.commands.append(Abort(request.request_id, request.attempt, engine.engine_id))
    request.failure_kind, request.failure = kind, reason
    end(state, request, RequestState.FAILED, finish="")


def end(state: PoolState, request: Request, to: RequestState, *, finish: str) -> None:
    request.state, request.finish_reason, request.ended_at = to, finish, state.now
    request.engine_id = None
    if to is RequestState.COMPLETED:
        state.account.completed += 1
    else:
        state.account.failed += 1
    state.commands.append(Ended(request.request_id))
