"""Draining: requests leave at the end of a chunk, so that no token is sampled twice. Pure.

    notice ─► takes nothing new ─► each request leaves when its chunk ends ─► it has none: it may be ended
                                   or ends here, if there is time
              leave_by ─► what is still here leaves ─► until ─► gone

An engine sends what it sampled in chunks, a short response as one; who leaves in the middle of a chunk loses
what is in it. A chunk that was begun is waited for unless it cannot end in time at the best speed seen. After
it another one is begun only where it ends in time even at less than the speed seen, and then for one of two
reasons: the whole response is expected to, or no other engine has room.
"""

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.dispatch import expected_tokens_left
from rl_agent.pool.scheduler.migration import can_continue
from rl_agent.pool.scheduler.placement import predicted_rate
from rl_agent.pool.scheduler.records import Engine, EngineState, Request
from rl_agent.pool.scheduler.state import PoolState, change_engine, end_engine, move, move_all, set_timer

MARGIN_S = 2.0
MARGIN_SHARE = 0.25
"""The share of the time left that is kept, if it is less than that, between the last request and the end."""
CAUTION = 1.5
"""The factor by which another chunk may take longer than at the speed seen."""


def drain_asked(state: PoolState, engine: Engine, event: events.DrainAsked) -> None:
    """Begin to drain an engine; a second notice counts only if it leaves less time."""
    is_news = engine.state is not EngineState.DRAINING
    if not is_news and event.until >= engine.drain_until:
        return
    engine.drain_until = event.until
    engine.leave_by = event.until - min(MARGIN_S, MARGIN_SHARE * (event.until - state.now))
    if is_news:
        change_engine(state, engine, EngineState.DRAINING, event.reason)
    set_timer(state, engine.leave_by, "leave", engine.engine_id)
    set_timer(state, event.until, "drained", engine.engine_id)
    here = [state.requests[request_id] for request_id in engine.running]
    for request in [candidate for candidate in here if not _may_wait(state, candidate, engine)]:
        move(state, request, f"drains: {event.reason}")


def chunk_ended(state: PoolState, request: Request, engine: Engine) -> None:
    """Move a request at the end of its chunk, unless another chunk is worth waiting for."""
    if not _may_begin_another(state, request, engine):
        move(state, request, f"drains: {engine.reason}")


def leave_due(state: PoolState, engine: Engine) -> None:
    move_all(state, engine, f"drains: {engine.reason}")


def drained(state: PoolState, engine: Engine) -> None:
    end_engine(state, engine, f"drained: {engine.reason}", is_crash=False)


def _may_wait(state: PoolState, request: Request, engine: Engine) -> bool:
    """Return whether to wait for the end of the chunk, or of a response that cannot be continued."""
    rest = expected_tokens_left(state, request)
    if not can_continue(request.order.params):
        return _ends_in_time(rest, engine, state.now)
    best = engine.request_tokens_per_s
    return state.now < engine.leave_by and (
        not best or request.last_progress + min(request.interval, rest) / best <= engine.leave_by
    )


def _may_begin_another(state: PoolState, request: Request, engine: Engine) -> bool:
    chunk = min(request.interval, request.order.max_tokens - len(request.token_ids))
    if not _ends_in_time(chunk, engine, state.now):
        return False
    if _ends_in_time(expected_tokens_left(state, request), engine, state.now):
        return True
    return can_continue(request.order.params) and state.placement.best() is None


def _ends_in_time(tokens: float, engine: Engine, now: float) -> bool:
    rate = predicted_rate(engine, len(engine.running))
    return rate > 0 and now + CAUTION * tokens / rate <= engine.leave_by
