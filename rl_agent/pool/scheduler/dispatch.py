"""Dispatch: sends waiting requests to engines, and measures how fast the engines are. Pure."""

import heapq

from rl_agent.pool.scheduler.crash_suspects import is_suspect, must_wait
from rl_agent.pool.scheduler.events import Generate
from rl_agent.pool.scheduler.length_model import remaining_tokens
from rl_agent.pool.scheduler.migration import can_continue, note_arrival, tokens_left
from rl_agent.pool.scheduler.placement import (
    FEW_TOKENS,
    OPTIMISM,
    can_finish,
    can_take,
    predicted_rate,
    stream_interval,
)
from rl_agent.pool.scheduler.policies import RequestView
from rl_agent.pool.scheduler.rebalance import Remainder, Share, plan_moves
from rl_agent.pool.scheduler.records import Engine, EngineState, FailureKind, Request, RequestId, RequestState
from rl_agent.pool.scheduler.single_version import (
    begin_anew,
    engines_with_version,
    may_run,
    may_run_elsewhere,
)
from rl_agent.pool.scheduler.state import PoolState, begun_with, end, enqueue, fail, move, set_timer

MAX_REMEMBERED_GROUPS = 65_536
PREFILL_SPEEDUP = 10.0
"""Assumed speed of prefill over decoding, in tokens: the cost of a move."""
CROWDED = 0.8
"""Share of its best throughput from which an engine's requests are taken to slow each other down."""
UNCROWDED = 4.0
"""Assumed speed-up of a request alone over one among many, until one was nearly alone."""
CONSIDERED = 8
"""Engines looked at from either end when work is moved."""
MOVES_AT_ONCE = 16
"""The number of moves before speeds are learned anew."""
SAMPLED = 128
"""Waiting requests of a run by which the rest of them is judged."""


def dispatch(state: PoolState) -> None:
    """Fill the engines' free places: suspects first, then the run with the fewest running requests."""
    if state.suspects:
        _dispatch_suspects(state)
    if state.begun:
        _dispatch_begun(state)
    while (engine := state.placement.best()) is not None:
        request = _next_request(state)
        if request is None:
            break
        needed = request.order.min_weight_version
        if begun_with(state, request) is not None:  # it waited from before that was asked for
            enqueue(state, request)
            _dispatch_begun(state)
        elif engine.weight_version < needed:
            heapq.heappush(state.held.setdefault(needed, []), (request.number, request.request_id))
        else:
            _send(state, request, _place(state, request, engine))
    if state.held:
        _dispatch_held(state)


def _dispatch_held(state: PoolState) -> None:
    """Send requests that need newer weights to the engines that have them, each engine in turn."""
    free = state.placement.in_order()
    for needed, queue in sorted(state.held.items()):
        fit = [engine for engine in free if engine.weight_version >= needed]
        while queue and (fit := [engine for engine in fit if can_take(engine, state.now)]):
            for engine in fit:
                request = _oldest_of(state, queue)
                if request is None:
                    break
                _send(state, request, _place(state, request, engine))
        if not queue:
            del state.held[needed]


def _dispatch_begun(state: PoolState) -> None:
    """Send requests to engines with the weights that began them; restart them if no engine has these."""
    for version, queue in list(state.begun.items()):
        engines = engines_with_version(state, version)
        while free := [engine for engine in engines if can_finish(engine, state.now)]:
            request = _oldest_of(state, queue)
            if request is None:
                break
            _send(state, request, _engine_of_episode(state, request, free))
        while not engines and state.placement.best() and (request := _oldest_of(state, queue)):
            begin_anew(state, request)
            enqueue(state, request)
        if not queue:
            del state.begun[version]


def _engine_of_episode(state: PoolState, request: Request, free: list[Engine]) -> Engine:
    """Return the engine that has the episode's earlier turns in its cache, or the best one."""
    _, began_at = state.episodes.get(request.episode, (0, ""))
    there = [engine for engine in free if engine.engine_id == began_at]
    return there[0] if there else _choose(state, request, free)


def _dispatch_suspects(state: PoolState) -> None:
    """Send one suspect to each engine that has none, if possible to one that did not die under it."""
    free = [engine for engine in state.placement.in_order() if engine.suspect is None]
    waiting = list(state.suspects)
    state.suspects.clear()
    for request_id in waiting:
        request = state.requests.get(request_id)
        if request is None or request.state is not RequestState.QUEUED:
            continue
        begun = begun_with(state, request)
        if begun is not None and free and not engines_with_version(state, begun):
            begin_anew(state, request)
        fit = [engine for engine in free if may_run(state, engine, request)]
        avoided = {*request.wrong_answers_by, request.refused_by}
        if may_run_elsewhere(state, request, avoided):  # though it may be busy now
            fit = [engine for engine in fit if engine.offer.name not in avoided]
        if not fit or must_wait(request, state.rules):
            state.suspects.append(request_id)
            continue
        deaths = request.deaths | set(request.questions.values())
        engine = _choose(state, request, [peer for peer in fit if peer.offer.name not in deaths] or fit)
        free.remove(engine)
        _send(state, request, engine)


def _next_request(state: PoolState) -> Request | None:
    """Return the oldest waiting request of the run that has the fewest running ones."""
    while state.queues:
        run = min(state.queues, key=lambda run: state.at_engines[run])
        request = _oldest_of(state, state.queues[run])
        if not state.queues[run]:
            del state.queues[run]
        if request is not None:
            return request
    return None


def _oldest_of(state: PoolState, queue: list[tuple[int, RequestId]]) -> Request | None:
    while queue:
        _, request_id = heapq.heappop(queue)
        request = state.requests.get(request_id)
        if request is not None and request.state is RequestState.QUEUED:
            return request
    return None


def _place(state: PoolState, request: Request, best: Engine) -> Engine:
    """Return the engine for a request; `best` is that of a policy that does not look at requests."""
    if state.placement.looks_at_requests:
        fit = [peer for peer in state.placement.able() if may_run(state, peer, request)]
        engine = _choose(state, request, fit)
    else:
        engine = _near_siblings(state, request, best)
    if request.order.group is not None:
        if len(state.affinity) >= MAX_REMEMBERED_GROUPS:
            del state.affinity[next(iter(state.affinity))]
        state.affinity[request.order.run, request.order.group] = engine.engine_id
    return engine


def _near_siblings(state: PoolState, request: Request, best: Engine) -> Engine:
    """Return the engine that has the prompt in its cache, unless waiting for it costs more than it saves."""
    near = state.engines.get(_siblings_at(state, request), best)
    if near is best or not can_take(near, state.now) or not may_run(state, near, request):
        return best
    return near if state.placement.is_near_best(near, best, _view(state, request)) else best


def _choose(state: PoolState, request: Request, engines: list[Engine]) -> Engine:
    return state.placement.choose(_view(state, request), engines)


def _siblings_at(state: PoolState, request: Request) -> str:
    return state.affinity.get((request.order.run, request.order.group or ""), "")


def _view(state: PoolState, request: Request) -> RequestView:
    order = request.order
    return RequestView(
        order.run,
        order.group or "",
        order.episode,
        order.prompt_token_ids,
        len(request.token_ids),
        order.max_tokens,
        expected_tokens_left(state, request),
        order.min_weight_version,
        request.moves,
        order.is_read_along,
        _siblings_at(state, request),
    )


def expected_tokens_left(state: PoolState, request: Request) -> float:
    """Return the expected tokens left: by the submitter's word, its siblings' lengths, or its run's."""
    order, num_tokens, length = request.order, len(request.token_ids), _expected_length(state, request)
    if length is not None:
        return min(remaining_tokens(length, num_tokens), max(1.0, order.max_tokens - num_tokens))
    return state.lengths.rest(order.run, num_tokens, order.max_tokens)


def _expected_length(state: PoolState, request: Request) -> float | None:
    """Return the expected length of a response; None if nothing is known."""
    order = request.order
    return order.expected_tokens or state.lengths.mean(order.run, order.group)


def _send(state: PoolState, request: Request, engine: Engine) -> None:
    if tokens_left(request, engine.max_model_len) < 1:
        _refuse(state, request, engine)
        return
    request.state, request.engine_id = RequestState.RUNNING, engine.engine_id
    request.attempt += 1
    request.attempt_start = len(request.token_ids)
    request.last_progress = state.now
    request.interval = _interval(state, request, engine)
    request.expected = expected_tokens_left(state, request)
    if (moved := note_arrival(request, engine, state.now)) is not None:
        state.commands.append(moved)
    if is_suspect(request):
        engine.suspect = request.request_id
    engine.running[request.request_id] = None
    engine.work += request.expected
    if engine.idle_since is not None:
        engine.idle_s += state.now - engine.idle_since
        engine.idle_since = None
    run = request.order.run
    state.at_engines[run] += 1
    state.placement.picked(engine)
    state.placement.changed(engine, state.now)
    stall_due = state.now + state.rules.stall_timeout_s
    set_timer(state, stall_due, "stall", request.request_id, request.attempt)
    if not state.is_measuring:
        state.is_measuring, state.measured_at = True, state.now
        set_timer(state, state.now + state.rules.rebalance_interval_s, "measure", "")
    state.commands.append(Generate(request.request_id, request.attempt, engine.engine_id))


def _interval(state: PoolState, request: Request, engine: Engine) -> int:
    """Return how many tokens the engine sends together."""
    rules = state.rules
    if request.order.is_read_along or request.is_excused or is_suspect(request):
        return min(rules.stream_interval, FEW_TOKENS)
    account = state.account
    still_open = account.submitted - account.completed - account.failed
    at_each = min(engine.offer.capacity, still_open // len(state.engines))
    return stream_interval(rules, engine, max(len(engine.running) + 1, at_each))


def _refuse(state: PoolState, request: Request, engine: Engine) -> None:
    """End a request whose context is full: completed if it has tokens, failed if it has none."""
    if request.token_ids:
        end(state, request, RequestState.COMPLETED, finish="length")
        return
    size, limit = len(request.order.prompt_token_ids), engine.max_model_len
    reason = f"its prompt of {size} tokens fills the {limit} of the model"
    fail(state, request, FailureKind.PROMPT_TOO_LONG, reason)


def measure_due(state: PoolState) -> None:
    """Measure the engines' speeds, then rebalance."""
    elapsed_s = state.now - state.measured_at
    is_busy = False
    for engine in state.engines.values():
        if engine.running:
            is_busy = True
            if elapsed_s > 0:
                _measure(state, engine, elapsed_s)
        else:
            engine.lately.clear()
        engine.tokens_since_measure, engine.seconds_since_measure = 0, 0.0
    state.measured_at = state.now
    state.is_measuring = is_busy
    if is_busy:
        set_timer(state, state.now + state.rules.rebalance_interval_s, "measure", "")
        if state.rules.rebalance_gain_s > 0 and not state.suspects:
            _rebalance(state)


def _measure(state: PoolState, engine: Engine, elapsed_s: float) -> None:
    """Measure an engine over as many seconds as a chunk takes, since requests may send at the same time."""
    engine.lately.append((elapsed_s, engine.tokens_since_measure))
    while sum(seconds for seconds, _ in engine.lately) - engine.lately[0][0] >= state.rules.stream_interval_s:
        engine.lately.popleft()
    if engine.seconds_since_measure > 0:
        tokens_per_s = sum(tokens for _, tokens in engine.lately) / sum(s for s, _ in engine.lately)
        _learn(state, engine, tokens_per_s, engine.tokens_since_measure / engine.seconds_since_measure)


def _learn(state: PoolState, engine: Engine, tokens_per_s: float, of_one: float) -> None:
    """Keep the best speeds seen; they fade slowly, so that a throttled machine is noticed."""
    count, total = len(engine.running), engine.tokens_per_s
    best_of_one = max(of_one, engine.request_tokens_per_s)
    is_crowded = count * best_of_one > CROWDED * max(total, tokens_per_s)
    engine.tokens_per_s = max(tokens_per_s, 0.95 * total if is_crowded else total)
    engine.request_tokens_per_s = best_of_one if is_crowded else max(of_one, 0.95 * best_of_one)
    engine.was_uncrowded |= not is_crowded
    state.placement.learn_speed(engine.tokens_per_s)


def _rebalance(state: PoolState) -> None:
    """Rebalance running requests so that the last one ends earlier."""
    engines = [e for e in _considered(state) if e.running or can_take(e, state.now)]
    if len(engines) < 2:
        return
    unknown = _unknown_rest(state, engines)
    shares = [_share(state, engine, engines, unknown) for engine in engines]
    planned = plan_moves(
        [share for share in shares if share is not None],
        gain_s=state.rules.rebalance_gain_s,
        limit=MOVES_AT_ONCE,
        waiting_tokens=_waiting_tokens(state),
    )
    going: list[tuple[Request, Engine]] = []
    for change in planned:
        request = state.requests[change.request_id]
        if request.state is RequestState.RUNNING:
            move(state, request, "another engine ends it earlier")
        going.append((request, state.engines[change.target]))
    for request, target in going:
        if request.state is RequestState.QUEUED and not is_suspect(request) and can_take(target, state.now):
            _send(state, request, target)


def _waiting_tokens(state: PoolState) -> float:
    """Return the expected tokens of all waiting requests, from a sample of them."""
    tokens = 0.0
    for queue in state.queues.values():
        stride = max(1, len(queue) // SAMPLED)
        sample = [
            state.requests[request_id] for _, request_id in queue[::stride] if request_id in state.requests
        ]
        waiting = [expected_tokens_left(state, item) for item in sample if item.state is RequestState.QUEUED]
        tokens += sum(waiting) * stride
    return tokens


def _considered(state: PoolState) -> list[Engine]:
    """Return the engines to rebalance; of many, those that would end first and last."""
    ready = [engine for engine in state.living(EngineState.READY) if engine.finishing_since is None]
    if len(ready) <= 2 * CONSIDERED:
        return ready

    def seconds(engine: Engine) -> float:
        return engine.work / state.placement.speed(engine)

    busy = [engine for engine in ready if engine.running]
    slow = heapq.nsmallest(CONSIDERED, busy, key=lambda e: predicted_rate(e, len(e.running)))
    last = heapq.nlargest(CONSIDERED, busy, key=seconds)
    first = heapq.nsmallest(CONSIDERED, (e for e in ready if can_take(e, state.now)), key=seconds)
    return list({engine.engine_id: engine for engine in (*slow, *last, *first)}.values())


def _share(state: PoolState, engine: Engine, others: list[Engine], unknown: float) -> Share | None:
    """Return an engine's part of the work; None if its speed is unknown or it takes nothing now.

    An idle engine that was never measured is hoped to be `OPTIMISM` times as fast as the slowest: what it
    takes then tells its speed.
    """
    rate, total = engine.request_tokens_per_s, engine.tokens_per_s
    if not rate and not engine.running:
        measured = [other for other in others if other.request_tokens_per_s]
        slowest = min(measured, key=lambda other: other.request_tokens_per_s, default=None)
        if slowest is not None:
            rate, total = OPTIMISM * slowest.request_tokens_per_s, OPTIMISM * slowest.tokens_per_s
    if not rate or engine.is_doubted:
        return None
    if not engine.was_uncrowded:
        rate *= UNCROWDED
    room = engine.offer.capacity - len(engine.running)
    return Share(
        engine.engine_id, rate, total, room, [_rest(state, key, unknown, others) for key in engine.running]
    )


def _unknown_rest(state: PoolState, engines: list[Engine]) -> float:
    """Return the tokens left to assume for each response of which nothing is known.

    The same for all: what ended first was short, so that the lengths learned from it mislead, and equal rates
    are what finds the long ones soonest.
    """
    requests = [state.requests[request_id] for engine in engines for request_id in engine.running]
    rests = [
        max(expected_tokens_left(state, request), len(request.token_ids))
        for request in requests
        if _expected_length(state, request) is None
    ]
    return sum(rests) / len(rests) if rests else 0.0


def _rest(state: PoolState, request_id: RequestId, unknown: float, engines: list[Engine]) -> Remainder:
    request = state.requests[request_id]
    context = len(request.order.prompt_token_ids) + len(request.token_ids)
    can_move = can_continue(request.order.params) and not is_suspect(request)
    can_move = can_move and all(may_run(state, engine, request) for engine in engines)
    tokens = unknown if _expected_length(state, request) is None else expected_tokens_left(state, request)
    lost = request.interval / 2  # sampled there and not sent yet
    return Remainder(tokens, request_id, context / PREFILL_SPEEDUP + lost, can_move)
