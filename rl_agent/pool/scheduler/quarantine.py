"""Quarantine of engines that answer wrongly: impossible tokens or logprobs. Pure.

    wrong answer ─► the request goes on elsewhere, from its last good token
              └───► counted by the engine's name ─(of MAX_WRONGED different requests)─► quarantined
                                  for a while, and again at the next one, each time for twice as long

What runs at an engine when it is quarantined goes elsewhere, too. A request that is answered wrongly wherever
it is sent is failed, and no engine is blamed for it.
"""

from rl_agent.pool.scheduler import crash_suspects
from rl_agent.pool.scheduler.records import Engine, EngineState, FailureKind, Request
from rl_agent.pool.scheduler.state import PoolState, fail, move, move_all, set_timer

MAX_WRONG_ANSWERS = 3
"""Requests that an engine may answer wrongly."""
WINDOW_S = 3600.0
"""Those within it count together."""
FIRST_S, LONGEST_S = 30.0, 600.0


def answered_wrongly(state: PoolState, request: Request, problem: str) -> None:
    """Handle an answer that the engine cannot have sampled."""
    engine = state.engines[request.engine_id or ""]
    engine.wrong_answers += 1
    state.account.wrong_answers += 1
    crash_suspects.wrong_answers_of(request, engine, state.rules)
    record = state.wrong_answers_of.setdefault(engine.offer.name, {})
    record[request.request_id] = state.now
    if crash_suspects.is_cause_of_wrong_answers(request, state.rules):
        names = ", ".join(sorted(request.wrong_answers_by))
        for of_name in state.wrong_answers_of.values():
            of_name.pop(request.request_id, None)
        reason = f"{request.wrong_answers_by.total()} wrong answers, from {names}; the last: {problem}"
        fail(state, request, FailureKind.WRONG_ANSWERS, reason, is_at_engine=False)
        return
    move(state, request, f"answered wrongly: {problem}", is_at_engine=False)
    _forget_old(state)
    if len(record) >= MAX_WRONG_ANSWERS and engine.state is not EngineState.DRAINING:
        _quarantine(state, engine, problem)


def _quarantine(state: PoolState, engine: Engine, problem: str) -> None:
    name = engine.offer.name
    pause_s = min(LONGEST_S, FIRST_S * 2.0 ** (len(state.wrong_answers_of[name]) - MAX_WRONG_ANSWERS))
    state.quarantined_until[name] = state.now + pause_s
    engine.reason = f"quarantined for {pause_s:g} s, for it answers wrongly: {problem}"
    keep_out(state, engine)
    move_all(state, engine, engine.reason)
    state.placement.changed(engine, state.now)


def _forget_old(state: PoolState) -> None:
    for name, record in list(state.wrong_answers_of.items()):
        for request_id in [key for key, when in record.items() if state.now - when > WINDOW_S]:
            del record[request_id]
        if not record:
            del state.wrong_answers_of[name]
            state.quarantined_until.pop(name, None)


def keep_out(state: PoolState, engine: Engine) -> None:
    """Give an engine no requests while its name is in quarantine, also after it registered again."""
    until = state.quarantined_until.get(engine.offer.name, state.now)
    if until > state.now:
        engine.is_quarantined, engine.ready_after = True, max(engine.ready_after, until)
        set_timer(state, engine.ready_after, "pause", engine.engine_id)


def pause_over(state: PoolState, engine: Engine) -> None:
    """Let the engine have requests again, unless it has to wait for something else."""
    if engine.ready_after <= state.now:
        engine.is_quarantined = False
        state.placement.changed(engine, state.now)
