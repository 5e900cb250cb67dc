"""Crash suspects: find the request that crashes engines among those that merely ran beside it. Pure.

A connection that breaks may mean a dead engine; that is known only when its lease is over, its worker says
so, or it answers again. A request that had got nowhere when it broke (fewer than `min_progress_tokens`
beyond the furthest it ever came) is a suspect from that moment: it runs on trial, on an engine with no other
suspect, so that two of them never share a death again, and as soon as it gets anywhere it is cleared.
One whose engine was to send more than that at once is spared the first time, since nothing could be seen of
it: it goes on like any other, in short chunks.

    broke here ─► open question ─(engine lives)─► nothing      at most `engine_deaths_limit` open questions
                        └────────(engine is dead)─► counts     and deaths together, then it waits

`unrelated` deaths are those of engines where nothing was stuck: spot machines that were taken away.

A request under which `engine_deaths_limit` different engines die without progress fails, alone. Where there
are fewer machines than that, twice as many deaths count. With wrong answers it is the same: the request is
tried elsewhere, and fails only if all engines answer it wrongly (`quarantine`).
"""

from rl_agent.pool.scheduler.records import Engine, PoolRules, Request


def broke(request: Request, engine: Engine, rules: PoolRules) -> None:
    """Record that the connection broke under a running request: its engine may be dead."""
    if is_stuck(request, rules) and request.interval > rules.min_progress_tokens and not request.is_excused:
        request.is_excused = True
    elif is_stuck(request, rules):
        request.questions[engine.engine_id] = engine.offer.name
        engine.broken[request.request_id] = None
    else:
        _clear(request)
    request.reached = max(request.reached, len(request.token_ids))


def died(request: Request, engine: Engine, unrelated_deaths: int) -> None:
    """Record that an engine died under a request that had made no progress there."""
    request.questions.pop(engine.engine_id, None)
    if not request.num_deaths:
        request.unrelated_before = unrelated_deaths
    request.deaths.add(engine.offer.name)
    request.num_deaths += 1


def lives(request: Request, engine: Engine) -> None:
    """Record that an engine is healthy: it broke the request off for another reason."""
    request.broken_attempts += 1
    request.questions.pop(engine.engine_id, None)


def progressed(request: Request, engine: Engine, rules: PoolRules) -> None:
    """Clear a suspect that made progress, and let its engine have another one."""
    if is_stuck(request, rules):
        return
    request.broken_attempts, request.is_excused = 0, False
    if engine.suspect == request.request_id:
        _clear(request)
        engine.suspect = None


def wrong_answers_of(request: Request, engine: Engine, rules: PoolRules) -> None:
    """Record that an engine answered a request wrongly; what it sent before was right."""
    if not is_stuck(request, rules):
        _clear(request)
    request.wrong_answers_by[engine.offer.name] += 1
    request.reached = max(request.reached, len(request.token_ids))


def is_stuck(request: Request, rules: PoolRules) -> bool:
    """Return whether the running attempt has made no progress."""
    start = max(request.attempt_start, request.reached)
    return len(request.token_ids) - start < rules.min_progress_tokens


def is_suspect(request: Request) -> bool:
    return request.num_deaths > 0 or bool(request.questions or request.wrong_answers_by or request.refused_by)


def must_wait(request: Request, rules: PoolRules) -> bool:
    """Return whether a suspect may have crashed enough engines already, which is not known yet."""
    names = request.deaths | set(request.questions.values())
    return bool(request.questions) and len(names) >= rules.engine_deaths_limit


def is_cause_of_crashes(request: Request, rules: PoolRules, unrelated_deaths: int) -> bool:
    """Return whether a request crashes engines, rather than that many engines die anyway."""
    if unrelated_deaths - request.unrelated_before >= request.num_deaths:
        return False
    return (
        len(request.deaths) >= rules.engine_deaths_limit
        or request.num_deaths >= 2 * rules.engine_deaths_limit
    )


def is_broken_off(request: Request, rules: PoolRules) -> bool:
    """Return whether healthy engines keep breaking a request off."""
    return request.broken_attempts >= rules.max_broken_attempts


def is_cause_of_wrong_answers(request: Request, rules: PoolRules) -> bool:
    """Return whether too many engines answer a request wrongly for all of them to be at fault."""
    by = request.wrong_answers_by
    return len(by) >= rules.engine_deaths_limit or by.total() >= 2 * rules.engine_deaths_limit


def reason(request: Request) -> str:
    names = ", ".join(sorted(request.deaths))
    return (
        f"{request.num_deaths} engines died under it ({names}) and it never got past token"
        f" {len(request.token_ids)}: it is taken for the cause"
    )


def _clear(request: Request) -> None:
    request.deaths.clear()
    request.questions.clear()
    request.wrong_answers_by.clear()
    request.num_deaths, request.refused_by = 0, ""
