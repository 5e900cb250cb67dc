"""Finding the request that kills engines, among the many that were only near when one died.

A connection that breaks may mean a dead engine; that is known only when its lease is over, its worker says
so, or it answers again. A request that had got nowhere when it broke (fewer than `poison_progress_tokens`
beyond the furthest it ever came) is a suspect from that moment: it runs on trial, on an engine with no other
suspect, so that two of them never share a death again, and as soon as it gets anywhere it is cleared.
One whose engine was to send more than that at once is spared the first time, since nothing could be seen of
it: it goes on like any other, in short chunks.

    broke here ─► open question ─(engine lives)─► nothing      at most `poison_engines` open questions
                        └────────(engine is dead)─► counts     and deaths together, then it waits

`unrelated` deaths are those of engines where nothing was stuck: spot machines that were taken away.

One that has `poison_engines` different engines die under it without getting anywhere is failed, alone. Where
there are fewer machines than that, twice as many deaths count. With engines that answer what they cannot have
sampled it is the same: the request is tried elsewhere, and blamed only if all of them do so (`quarantine`).
"""

from rl_agent.pool.scheduler.records import Engine, PoolRules, Request


def broke(request: Request, engine: Engine, rules: PoolRules) -> None:
    """The connection broke under a running `request`: perhaps `engine` is dead."""
    if is_stuck(request, rules) and request.interval > rules.poison_progress_tokens and not request.is_spared:
        request.is_spared = True
    elif is_stuck(request, rules):
        request.questions[engine.engine_id] = engine.offer.name
        engine.broken[request.request_id] = None
    else:
        _clear(request)
    request.reached = max(request.reached, len(request.token_ids))


def died(request: Request, engine: Engine, unrelated_deaths: int) -> None:
    """`engine` is known to be dead, and `request` had got nowhere there."""
    request.questions.pop(engine.engine_id, None)
    if not request.num_deaths:
        request.unrelated_before = unrelated_deaths
    request.deaths.add(engine.offer.name)
    request.num_deaths += 1


def lives(request: Request, engine: Engine) -> None:
    """`engine` is well: it broke the request off for another reason."""
    request.fruitless += 1
    request.questions.pop(engine.engine_id, None)


def progressed(request: Request, engine: Engine, rules: PoolRules) -> None:
    """Clear a suspect that got somewhere, and let its engine have another one."""
    if is_stuck(request, rules):
        return
    request.fruitless, request.is_spared = 0, False
    if engine.suspect == request.request_id:
        _clear(request)
        engine.suspect = None


def wronged(request: Request, engine: Engine, rules: PoolRules) -> None:
    """`engine` sent what it cannot have sampled; what it had sent before was right."""
    if not is_stuck(request, rules):
        _clear(request)
    request.wronged_by[engine.offer.name] += 1
    request.reached = max(request.reached, len(request.token_ids))


def is_stuck(request: Request, rules: PoolRules) -> bool:
    """Whether the running attempt has got nowhere."""
    start = max(request.attempt_start, request.reached)
    return len(request.token_ids) - start < rules.poison_progress_tokens


def is_suspect(request: Request) -> bool:
    return request.num_deaths > 0 or bool(request.questions or request.wronged_by or request.refused_by)


def must_wait(request: Request, rules: PoolRules) -> bool:
    """Whether it may have killed enough engines already, and the answer is still to come."""
    names = request.deaths | set(request.questions.values())
    return bool(request.questions) and len(names) >= rules.poison_engines


def is_poison(request: Request, rules: PoolRules, unrelated_deaths: int) -> bool:
    """Not while as many engines died since its first death that no stuck request can have killed."""
    if unrelated_deaths - request.unrelated_before >= request.num_deaths:
        return False
    return len(request.deaths) >= rules.poison_engines or request.num_deaths >= 2 * rules.poison_engines


def is_hopeless(request: Request, rules: PoolRules) -> bool:
    """Whether engines that are well keep breaking it off."""
    return request.fruitless >= rules.max_fruitless


def is_cause_of_wrong_answers(request: Request, rules: PoolRules) -> bool:
    """Whether so many engines answer it wrongly that they cannot all be broken."""
    by = request.wronged_by
    return len(by) >= rules.poison_engines or by.total() >= 2 * rules.poison_engines


def words(request: Request) -> str:
    names = ", ".join(sorted(request.deaths))
    return (
        f"{request.num_deaths} engines died under it ({names}) and it never got past token"
        f" {len(request.token_ids)}: it is taken for the cause"
    )


def _clear(request: Request) -> None:
    request.deaths.clear()
    request.questions.clear()
    request.wronged_by.clear()
    request.num_deaths, request.refused_by = 0, ""
