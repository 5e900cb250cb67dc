"""Events of a request: submission, tokens, its end, or its way back to the queue."""

from rl_agent.pool.scheduler import crash_suspects, draining, events, quarantine, single_version
from rl_agent.pool.scheduler.events import Abort, ProbeEngine
from rl_agent.pool.scheduler.migration import find_stop, finish_of_tokens
from rl_agent.pool.scheduler.records import (
    Departure,
    EngineState,
    FailureKind,
    PartialResponse,
    Request,
    RequestState,
    Span,
)
from rl_agent.pool.scheduler.state import (
    PoolState,
    doubt,
    end,
    enqueue,
    fail,
    move,
    release,
    renew_lease,
    set_timer,
    throw_away,
)


def submitted(state: PoolState, event: events.Submitted) -> None:
    order = event.order
    if order.request_id in state.requests:
        return
    request = Request(order=order, number=next(state.numbers), submitted_at=state.now)
    state.requests[order.request_id] = request
    state.account.submitted += 1
    state.lengths.submitted(order.run, order.group)
    set_timer(state, order.deadline, "deadline", order.request_id)
    if event.response is not None and event.response.token_ids:
        _take_up(request, event.response)
        state.lengths.made(order.run, order.group, len(event.response.token_ids))
        if ended := finish_of_tokens(request):
            end(state, request, RequestState.COMPLETED, finish=ended)
            return
    enqueue(state, request)


def _take_up(request: Request, response: PartialResponse) -> None:
    """Continue from the tokens of an earlier manager, which counts as a move."""
    request.token_ids.extend(response.token_ids)
    request.logprobs.extend(response.logprobs)
    request.texts.append(response.text)
    request.spans.extend(response.spans)
    request.moves = response.moves + 1
    request.left = Departure("", "the manager began anew", request.submitted_at)


def cancelled(state: PoolState, event: events.Cancelled) -> None:
    request = state.requests.get(event.request_id)
    if request is not None and request.is_open:
        fail(state, request, FailureKind.CANCELLED, "cancelled by its submitter")


def progress(state: PoolState, request: Request, event: events.Progress) -> None:
    if event.token_ids or event.text:
        _add(state, request, event)
    if event.finish_reason is None or not request.is_running:
        return
    if event.finish_reason not in ("stop", "length"):
        broke(state, request, f"the engine ended it with {event.finish_reason!r}")
        return
    _complete(state, request, event.finish_reason, event.stop_reason)


def _add(state: PoolState, request: Request, event: events.Progress) -> None:
    engine = state.engines[request.engine_id or ""]
    origin = (engine.engine_id, engine.weight_version)
    if not request.spans or (request.spans[-1].engine_id, request.spans[-1].weight_version) != origin:
        request.spans.append(Span(len(request.token_ids), *origin))
        single_version.hold_episode(state, request, engine)
    room = request.order.max_tokens - len(request.token_ids)
    request.token_ids.extend(event.token_ids[:room])
    request.logprobs.extend(event.logprobs[:room])
    request.names.extend(event.names[:room])
    if event.prompt_token_ids:
        size = len(event.prompt_token_ids) - request.attempt_start
        request.seen_prompt = event.prompt_token_ids[:size]
    if event.text:
        request.texts.append(event.text)
    engine.seconds_since_measure += state.now - request.last_progress
    request.last_progress = state.now
    renew_lease(state, engine)
    engine.tokens_since_measure += len(event.token_ids)
    engine.useful_tokens += len(event.token_ids)
    state.account.tokens += len(event.token_ids)
    state.lengths.made(request.order.run, request.order.group, len(event.token_ids))
    engine.work = max(0.0, engine.work - len(event.token_ids))
    crash_suspects.progressed(request, engine, state.rules)
    if event.text and (stop := find_stop(request, event.text)) is not None:
        state.commands.append(Abort(request.request_id, request.attempt, engine.engine_id))
        _complete(state, request, "stop", stop)
    elif len(event.token_ids) > room:
        state.commands.append(Abort(request.request_id, request.attempt, engine.engine_id))
        _complete(state, request, "length", None)
    elif engine.state is EngineState.DRAINING and event.finish_reason is None:
        draining.chunk_ended(state, request, engine)


def broken(state: PoolState, request: Request, event: events.Broken) -> None:
    if event.is_refusal:
        _refused(state, request, event.problem)
    elif event.is_wrong_answer:
        quarantine.answered_wrongly(state, request, event.problem)
    else:
        broke(state, request, event.problem)


def _refused(state: PoolState, request: Request, problem: str) -> None:
    """Fail a request that an engine refused, unless another engine may accept it."""
    name = state.engines[request.engine_id or ""].offer.name
    is_continued = request.attempt_start > 0
    is_doubtful = is_continued or single_version.may_run_elsewhere(state, request, {name})
    if request.refused_by or not is_doubtful or (is_continued and request.order.is_read_along):
        fail(state, request, FailureKind.REFUSED, problem, is_at_engine=False)
        return
    request.refused_by = name
    if is_continued:
        throw_away(state, request)
    move(state, request, f"refused there: {problem}", is_at_engine=False)


def broke(state: PoolState, request: Request, problem: str) -> None:
    """End an attempt that broke off: doubt and probe the engine, and continue the request elsewhere."""
    engine = state.engines[request.engine_id or ""]
    if engine.state is EngineState.DRAINING:  # it is about to go: what breaks there says nothing of either
        move(state, request, problem, is_at_engine=False)
        return
    crash_suspects.broke(request, engine, state.rules)
    doubt(state, engine, problem)
    state.commands.append(ProbeEngine(engine.engine_id))
    if crash_suspects.is_broken_off(request, state.rules):
        reason = f"{request.broken_attempts + 1} attempts broke off at healthy engines; the last: {problem}"
        fail(state, request, FailureKind.BROKEN_OFF, reason, is_at_engine=False)
    else:
        move(state, request, problem, is_at_engine=False)


def _complete(state: PoolState, request: Request, reason: str, stop: int | str | None) -> None:
    release(state, request)
    state.lengths.ended(request.order.run, request.order.group, len(request.token_ids))
    request.stop_reason = stop
    end(state, request, RequestState.COMPLETED, finish=reason)


def forgotten(state: PoolState, event: events.Forgotten) -> None:
    for request_id in event.request_ids:
        request = state.requests.get(request_id)
        if request is not None and not request.is_open:
            del state.requests[request_id]


def deadline_due(state: PoolState, request: Request) -> None:
    if not request.is_open:
        return
    waited = f"{state.now - request.submitted_at:.1f} s"
    if request.state is RequestState.RUNNING:
        reason = f"its deadline passed after {waited}, with {len(request.token_ids)} tokens made"
    elif not state.engines:
        reason = f"its deadline passed after {waited} with no engine in the pool"
    elif all(engine.is_quarantined for engine in state.engines.values()):
        reason = f"its deadline passed after {waited} with no engine in the pool that answers rightly"
    elif request.order.min_weight_version > state.weight_version:
        needed = request.order.min_weight_version
        reason = f"its deadline passed after {waited} in the queue for weight version {needed}"
    else:
        reason = f"its deadline passed after {waited} in the queue"
    fail(state, request, FailureKind.DEADLINE, reason)


def stall_due(state: PoolState, request: Request, attempt: int) -> None:
    """Continue a request elsewhere if it got no token for `stall_timeout_s`."""
    if request.state is not RequestState.RUNNING or request.attempt != attempt:
        return
    due = request.last_progress + state.rules.stall_timeout_s
    if due > state.now:
        set_timer(state, due, "stall", request.request_id, attempt)
        return
    state.commands.append(Abort(request.request_id, attempt, request.engine_id or ""))
    broke(state, request, f"no token for {state.rules.stall_timeout_s:g} s")
