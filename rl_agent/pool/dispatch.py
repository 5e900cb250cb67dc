"""Sends waiting requests to engines, measures the engines, and moves work to where it ends earlier."""

import heapq

from rl_agent.pool.balance import OPTIMISM, LengthEstimate, can_take, gain_of_moving, predicted_rate
from rl_agent.pool.continuation import can_continue, tokens_left
from rl_agent.pool.events import Command, Generate
from rl_agent.pool.poison import is_suspect, must_wait
from rl_agent.pool.records import Engine, EngineState, Request, RequestState
from rl_agent.pool.state import PoolState, end, fail, move, set_timer

MAX_REMEMBERED_GROUPS = 65_536
PREFILL_SPEEDUP = 10.0
"""How much faster an engine is taken to read a prompt than to sample: what a move costs."""
CONSIDERED = 8
"""Engines looked at from either end when work is moved."""
MOVES_AT_ONCE = 16
"""From one engine to another, before speeds are learned anew."""


def dispatch(state: PoolState, now: float, out: list[Command]) -> None:
    """Fill the engines' free places: suspects first, then the run that has the least at the engines."""
    if state.suspects:
        _dispatch_suspects(state, now, out)
    while (engine := state.placement.best()) is not None:
        request = _next_request(state)
        if request is None:
            break
        needed = request.order.min_weight_version
        if engine.weight_version < needed:
            heapq.heappush(state.held.setdefault(needed, []), (request.number, request.request_id))
        else:
            _send(state, request, _near_siblings(state, request, engine, now), now, out)
    if state.held:
        _dispatch_held(state, now, out)


def _dispatch_held(state: PoolState, now: float, out: list[Command]) -> None:
    """Requests for which the first engine in the order was too old: to those new enough, in turn."""
    free = list(state.placement.in_order())
    for needed, queue in sorted(state.held.items()):
        fit = [engine for engine in free if engine.weight_version >= needed]
        while queue and (fit := [engine for engine in fit if can_take(engine, now)]):
            for engine in fit:
                request = _oldest_of(state, queue)
                if request is None:
                    break
                _send(state, request, _near_siblings(state, request, engine, now), now, out)
        if not queue:
            del state.held[needed]


def _dispatch_suspects(state: PoolState, now: float, out: list[Command]) -> None:
    """One to each engine that has none, if possible one that has not died under this request."""
    free = [engine for engine in state.placement.in_order() if engine.suspect is None]
    waiting = list(state.suspects)
    state.suspects.clear()
    for request_id in waiting:
        request = state.requests.get(request_id)
        if request is None or request.state is not RequestState.QUEUED:
            continue
        fit = [engine for engine in free if is_new_enough(engine, request)]
        if not fit or must_wait(request, state.rules):
            state.suspects.append(request_id)
            continue
        deaths = request.deaths | set(request.questions.values())
        engine = min(fit, key=lambda engine: engine.offer.name in deaths)
        free.remove(engine)
        _send(state, request, engine, now, out)


def _next_request(state: PoolState) -> Request | None:
    """The oldest of the run that has the fewest requests at engines."""
    waiting = [run for run, queue in state.queues.items() if queue]
    while waiting:
        run = min(waiting, key=lambda run: state.at_engines.get(run, 0))
        request = _oldest_of(state, state.queues[run])
        if request is not None:
            return request
        waiting.remove(run)
    return None


def _oldest_of(state: PoolState, queue: list[tuple[int, str]]) -> Request | None:
    while queue:
        _, request_id = heapq.heappop(queue)
        request = state.requests.get(request_id)
        if request is not None and request.state is RequestState.QUEUED:
            return request
    return None


def is_new_enough(engine: Engine, request: Request) -> bool:
    return engine.weight_version >= request.order.min_weight_version


def _near_siblings(state: PoolState, request: Request, best: Engine, now: float) -> Engine:
    """The engine that read this prompt already, unless waiting there costs more than reading it again."""
    group = request.order.group
    if group is None:
        return best
    key = (request.order.run, group)
    engine = state.engines.get(state.affinity.get(key, ""), best)
    is_near = engine is best or state.placement.is_near_best(engine, best, _expected(state, request))
    if not is_near or not can_take(engine, now) or not is_new_enough(engine, request):
        engine = best
    if len(state.affinity) >= MAX_REMEMBERED_GROUPS:
        del state.affinity[next(iter(state.affinity))]
    state.affinity[key] = engine.engine_id
    return engine


def _expected(state: PoolState, request: Request) -> float:
    lengths = state.lengths.setdefault(request.order.run, LengthEstimate())
    return lengths.remaining(len(request.token_ids), request.order.max_tokens)


def _send(state: PoolState, request: Request, engine: Engine, now: float, out: list[Command]) -> None:
    if tokens_left(request, engine.max_model_len) < 1:
        _refuse(state, request, engine, now, out)
        return
    request.state, request.engine_id = RequestState.RUNNING, engine.engine_id
    request.attempt += 1
    request.attempt_start = len(request.token_ids)
    request.last_progress = now
    request.expected = _expected(state, request)
    if request.moves:
        engine.prefilled_tokens += len(request.order.prompt_token_ids) + len(request.token_ids)
    if is_suspect(request):
        engine.suspect = request.request_id
    engine.running[request.request_id] = None
    engine.work += request.expected
    if engine.idle_since is not None:
        engine.idle_s += now - engine.idle_since
        engine.idle_since = None
    run = request.order.run
    state.at_engines[run] = state.at_engines.get(run, 0) + 1
    state.placement.picked(engine)
    state.placement.changed(engine, now)
    stall_due = now + state.rules.stall_timeout_s
    set_timer(state, stall_due, "stall", request.request_id, request.attempt)
    if not state.is_measuring:
        state.is_measuring, state.measured_at = True, now
        set_timer(state, now + state.rules.rebalance_interval_s, "measure", "")
    out.append(Generate(request.request_id, request.attempt, engine.engine_id))


def _refuse(state: PoolState, request: Request, engine: Engine, now: float, out: list[Command]) -> None:
    """The context is full: the response ends here, or never begins."""
    if request.token_ids:
        end(state, request, RequestState.COMPLETED, now, out, finish="length")
        return
    size, limit = len(request.order.prompt_token_ids), engine.max_model_len
    fail(state, request, f"its prompt of {size} tokens fills the {limit} of the model", now, out)


def measure_due(state: PoolState, now: float, out: list[Command]) -> None:
    """Learn speeds from the time since the last measure; then, with nothing waiting, even the load out."""
    elapsed_s = now - state.measured_at
    is_busy = False
    for engine in state.engines.values():
        if engine.running:
            is_busy = True
            if elapsed_s > 0 and engine.tokens_since_measure:
                _learn(state, engine, engine.tokens_since_measure / elapsed_s)
        engine.tokens_since_measure = 0
    state.measured_at = now
    state.is_measuring = is_busy
    if is_busy:
        set_timer(state, now + state.rules.rebalance_interval_s, "measure", "")
        if state.rules.rebalance_gain_s > 0 and not state.suspects and not any(state.queues.values()):
            _rebalance(state, now, out)


def _learn(state: PoolState, engine: Engine, tokens_per_s: float) -> None:
    """Best values fade slowly, so that a throttled machine is found out."""
    of_request = tokens_per_s / len(engine.running)
    engine.tokens_per_s = max(tokens_per_s, 0.95 * engine.tokens_per_s)
    engine.request_tokens_per_s = max(of_request, 0.95 * engine.request_tokens_per_s)
    state.placement.learn_speed(engine.tokens_per_s)


def _rebalance(state: PoolState, now: float, out: list[Command]) -> None:
    """Move requests with much left from engines where they are slow to engines where they would be fast."""
    ready = [engine for engine in state.engines.values() if engine.state is EngineState.READY]
    slow = sorted((e for e in ready if e.running), key=lambda e: predicted_rate(e, len(e.running)))
    for source in slow[:CONSIDERED]:
        targets = [e for e in ready if e is not source and can_take(e, now)]
        for target in heapq.nlargest(CONSIDERED, targets, key=lambda e: _rate_with_one_more(e, source)):
            moved = _move_longest(state, source, target, now, out)
            if moved == 0:
                break


def _rate_with_one_more(engine: Engine, source: Engine) -> float:
    rate = predicted_rate(engine, len(engine.running) + 1)
    return rate if rate or engine.running else OPTIMISM * predicted_rate(source, 1)


def _move_longest(state: PoolState, source: Engine, target: Engine, now: float, out: list[Command]) -> int:
    left = sorted(
        ((_expected(state, state.requests[request_id]), request_id) for request_id in source.running),
        reverse=True,
    )
    moved = 0
    for remaining, request_id in left[:MOVES_AT_ONCE]:
        request = state.requests[request_id]
        if not can_continue(request.order.params) or not is_new_enough(target, request):
            continue  # its tokens would be lost, or made with weights too old
        speed = PREFILL_SPEEDUP * max(target.tokens_per_s, source.tokens_per_s)
        gain = gain_of_moving(request, source, target, remaining, speed) if speed else -1.0
        if gain < state.rules.rebalance_gain_s or not can_take(target, now):
            break
        move(state, request, now, out)
        if request.state is RequestState.QUEUED and not is_suspect(request):
            _send(state, request, target, now, out)
            moved += 1
    return moved
