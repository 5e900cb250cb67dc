"""The scheduler as a state machine: `(state, event, now) -> commands`. No IO, no clock, no randomness.

`PoolState` is consumed by `step` and belongs to it; the same events at the same times give the same commands.

What always holds, and `check` asserts:
- submitted = open + completed + failed, and each id is counted once however often it is submitted.
- A running request is at exactly one living engine; what an older attempt still sends is dropped.
- An engine that loads another model or is gone has no requests; one that drains gets no new ones.
- No request is at an engine whose weights are older than it asks for.

What cannot be handled is set aside, by name, and the rest goes on (`SetAside`).

A failed request never ends an engine: it makes the pool doubt it, which stops new work until the next sign
of life. Only the lease, the worker's word, or the end of a drain does. One that answers wrongly is kept out
for a while (`quarantine`).
"""

import heapq
from collections.abc import Callable

from rl_agent.pool.scheduler import (
    dispatch,
    draining,
    engines,
    events,
    quarantine,
    requests,
    single_version,
    weight_versions,
)
from rl_agent.pool.scheduler.events import Event, PoolCommand
from rl_agent.pool.scheduler.records import Engine, EngineState, RequestId, RequestState
from rl_agent.pool.scheduler.state import PoolState, set_aside

TIMERS_EACH = 4


def step(state: PoolState, event: Event, now: float) -> list[PoolCommand]:
    """Apply one event and everything whose time has come; the commands are to be carried out in order."""
    state.now, state.commands = now, []
    try:
        _apply(state, event)
    except Exception as error:
        _survive(state, type(event).__name__, _request_of(event), error)
    while state.timers and state.timers[0][0] <= now:
        _, _, kind, of, attempt = heapq.heappop(state.timers)
        try:
            _fire(state, kind, of, attempt)
        except Exception as error:
            _survive(state, f"timer {kind}", of, error)
    if len(state.timers) > TIMERS_EACH * (len(state.requests) + len(state.engines)) + 4096:
        _drop_stale_timers(state)
    try:
        dispatch.dispatch(state)
    except Exception as error:
        _survive(state, "dispatch", None, error)
    return state.commands


def _apply(state: PoolState, event: Event) -> None:
    """Pass an event to its handler; events of an engine or attempt that is over are dropped."""
    handle = _HANDLERS.get(type(event))
    if handle is None:
        return
    if isinstance(event, events.EngineEvent):
        if (engine := state.engines.get(event.engine_id)) is not None:
            handle(state, engine, event)
    elif isinstance(event, events.AttemptEvent):
        request = state.requests.get(event.request_id)
        if request is not None and request.is_running and request.attempt == event.attempt:
            handle(state, request, event)
    else:
        handle(state, event)


def _request_of(event: Event) -> RequestId | None:
    return (
        event.order.request_id if isinstance(event, events.Submitted) else getattr(event, "request_id", None)
    )


def _survive(
    state: PoolState,
    what: str,
    about: str | RequestId | None,
    error: Exception,
) -> None:
    """Set aside what raised an exception: at most one request fails. Input is typed, so this is a bug."""
    request = state.requests.get(about) if isinstance(about, RequestId) else None
    if request is not None and request.is_open:
        set_aside(state, request, error)
    else:
        state.commands.append(events.SetAside(f"{what}: {type(error).__name__}: {error}"))


_HANDLERS: dict[type[Event], Callable[..., None]] = {
    events.Registered: engines.registered,
    events.Probed: engines.probed,
    events.ProbeFailed: engines.probe_failed,
    events.Beat: engines.beat,
    events.BytesArrived: engines.bytes_arrived,
    events.DrainAsked: draining.drain_asked,
    events.EngineEnded: engines.engine_ended,
    events.ModelWanted: weight_versions.model_wanted,
    events.WeightsWanted: weight_versions.weights_wanted,
    events.PlaceTaken: weight_versions.place_taken,
    events.Submitted: requests.submitted,
    events.Cancelled: requests.cancelled,
    events.EpisodeEnded: single_version.episode_ended,
    events.Progress: requests.progress,
    events.Broken: requests.broken,
    events.Forgotten: requests.forgotten,
}
_TIMERS_OF_ENGINE: dict[str, Callable[[PoolState, Engine], None]] = {
    "lease": engines.lease_due,
    "start": engines.start_due,
    "leave": draining.leave_due,
    "drained": draining.drained,
    "probe": engines.probe_due,
    "pause": quarantine.pause_over,
    "behind": weight_versions.behind_due,
}


def _fire(state: PoolState, kind: str, of: str | RequestId, attempt: int) -> None:
    if kind == "measure":
        dispatch.measure_due(state)
    elif not isinstance(of, RequestId):
        if (engine := state.engines.get(of)) is not None:
            _TIMERS_OF_ENGINE[kind](state, engine)
    elif (request := state.requests.get(of)) is not None:
        if kind == "deadline":
            requests.deadline_due(state, request)
        else:
            requests.stall_due(state, request, attempt)


def _drop_stale_timers(state: PoolState) -> None:
    """Remove the timers of requests and engines that have ended."""

    def is_live(timer: tuple[float, int, str, str | RequestId, int]) -> bool:
        _, _, kind, of, attempt = timer
        if not isinstance(of, RequestId):
            return kind == "measure" or of in state.engines
        request = state.requests.get(of)
        return request is not None and request.is_open and (kind == "deadline" or attempt == request.attempt)

    state.timers = [timer for timer in state.timers if is_live(timer)]
    heapq.heapify(state.timers)


def check(state: PoolState) -> None:
    """Assert the invariants, for tests and simulations."""
    account = state.account
    still_open = [request for request in state.requests.values() if request.is_open]
    assert account.submitted == len(still_open) + account.completed + account.failed
    at_engines = 0
    for engine in state.engines.values():
        assert engine.state in (EngineState.READY, EngineState.DRAINING) or not engine.running, engine
        assert len(engine.running) <= engine.offer.capacity
        assert engine.suspect is None or engine.suspect in engine.running
        at_engines += len(engine.running)
        for request_id in engine.running:
            request = state.requests[request_id]
            assert request.state is RequestState.RUNNING
            assert request.engine_id == engine.engine_id
            assert engine.weight_version >= request.order.min_weight_version
    running = [request for request in still_open if request.state is RequestState.RUNNING]
    assert at_engines == len(running) == sum(state.at_engines.values())
    for request in state.requests.values():
        assert len(request.token_ids) == len(request.logprobs)
        assert len(request.token_ids) <= request.order.max_tokens
        has_failed = request.state is RequestState.FAILED
        assert has_failed == bool(request.failure) == (request.failure_kind is not None)
