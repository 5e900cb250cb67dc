"""Engines that answer what they cannot have sampled: a token that is none, a logprob that is none. Pure.

    wrong answer ─► the request goes on elsewhere, from its last good token
              └───► counted by the engine's name ─(of MAX_WRONGED different requests)─► quarantined
                                  for a while, and again at the next one, each time for twice as long

What runs at an engine when it is quarantined goes elsewhere, too. A request that is answered wrongly wherever
it is sent is failed, and no engine is blamed for it.
"""

from rl_agent.pool.scheduler import crash_suspects
from rl_agent.pool.scheduler.records import Engine, EngineState, FailureKind, Request
from rl_agent.pool.scheduler.state import PoolState, fail, move, move_all, set_timer

MAX_WRONGED = 3
"""Requests that an engine may answer wrongly."""
WINDOW_S = 3600.0
"""Those within it count together."""
FIRST_S, LONGEST_S = 30.0, 600.0


def answered_wrongly(state: PoolState, request: Request, problem: str) -> None:
    """The engine at which the request runs has sent what cannot be right."""
    engine = state.engines[request.engine_id or ""]
    engine.wrong_answers += 1
    state.account.wrong_answers += 1
    crash_suspects.wronged(request, engine, state.rules)
    record = state.wronged.setdefault(engine.offer.name, {})
    record[request.request_id] = state.now
    if crash_suspects.is_cause_of_wrong_answers(request, state.rules):
        names = ", ".join(sorted(request.wronged_by))
        for of_name in state.wronged.values():
            of_name.pop(request.request_id, None)
        words = f"{request.wronged_by.total()} wrong answers, from {names}; the last: {problem}"
        fail(state, request, FailureKind.WRONG_ANSWERS, words, is_at_engine=False)
        return
    move(state, request, is_at_engine=False)
    _forget_old(state)
    if len(record) >= MAX_WRONGED and engine.state is not EngineState.DRAINING:
        _quarantine(state, engine, problem)


def _quarantine(state: PoolState, engine: Engine, problem: str) -> None:
    name = engine.offer.name
    pause_s = min(LONGEST_S, FIRST_S * 2.0 ** (len(state.wronged[name]) - MAX_WRONGED))
    state.quarantined_until[name] = state.now + pause_s
    engine.reason = f"quarantined for {pause_s:g} s, for it answers wrongly: {problem}"
    keep_out(state, engine)
    move_all(state, engine)
    state.placement.changed(engine, state.now)


def _forget_old(state: PoolState) -> None:
    for name, record in list(state.wronged.items()):
        for request_id in [one for one, when in record.items() if state.now - when > WINDOW_S]:
            del record[request_id]
        if not record:
            del state.wronged[name]
            state.quarantined_until.pop(name, None)


def keep_out(state: PoolState, engine: Engine) -> None:
    """Give the engine nothing while its name is in quarantine; an engine that has registered anew as well."""
    until = state.quarantined_until.get(engine.offer.name, state.now)
    if until > state.now:
        engine.is_quarantined, engine.ready_after = True, max(engine.ready_after, until)
        set_timer(state, engine.ready_after, "pause", engine.engine_id)


def pause_over(state: PoolState, engine: Engine) -> None:
    """It may have work again, unless it waits for something else."""
    if engine.ready_after <= state.now:
        engine.is_quarantined = False
        state.placement.changed(engine, state.now)
