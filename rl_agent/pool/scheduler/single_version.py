"""Responses of one version: an engine takes new weights when it has finished what the old began. Pure.

    worker: fetched ─► finishing: nothing new ─► it has nothing left ─► switching ─► loaded: takes what waits
    (it is told to wait)   │  what began with the same weights           ▲ the worker is told to load
                           └─────── finish_within_s ─────────────────────┘

A response that was begun elsewhere, on an engine that left, goes on at an engine with the weights that began
it; begun anew where none is left. An episode of several turns is held together alike: the engine of its first
token waits until its submitter says that it is over. Who reads along has seen the tokens: such a response
goes on anywhere. What is not finished within `finish_within_s` goes on with the new weights.
"""

from collections.abc import Collection

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import Engine, EngineState, Request
from rl_agent.pool.scheduler.state import PoolState, begun_with, throw_away

MAX_EPISODES = 65_536
"""Of all runs together; of the one that began first it is forgotten."""


def follow(state: PoolState, engine: Engine) -> None:
    """After each word of the engine's worker on its weights."""
    before = (engine.finishing_since, engine.is_switching)
    limit_s = state.weights.finish_within_s if state.weights is not None else None
    if limit_s is None or engine.weights.fetched_version is None:
        _stop(engine, state.now)
    else:
        if engine.finishing_since is None:
            engine.finishing_since = state.now
        is_late = state.now - engine.finishing_since >= limit_s
        if is_late or _has_finished(state, engine):
            _switch(engine, state.now)
    if (engine.finishing_since, engine.is_switching) != before:
        state.placement.changed(engine, state.now)


def _has_finished(state: PoolState, engine: Engine) -> bool:
    """Also what its weights began elsewhere, where no other may: it may have come back for that."""
    version = engine.weight_version
    if engine.state is EngineState.REGISTERED or engine.running or state.begun.get(version):
        return False
    here = [began_at for began_with, began_at in state.episodes.values() if began_with == version]
    return not any(began_at == engine.engine_id or began_at not in state.engines for began_at in here)


def _switch(engine: Engine, now: float) -> None:
    if engine.is_switching or engine.finishing_since is None:
        return
    engine.is_switching = True
    engine.finishing_s += now - engine.finishing_since
    if engine.behind_since is not None:  # from here on it is the load that may take too long
        engine.behind_since = now


def _stop(engine: Engine, now: float) -> None:
    """It has loaded, or tries anew later."""
    if engine.finishing_since is not None and not engine.is_switching:
        engine.finishing_s += now - engine.finishing_since
    engine.finishing_since, engine.is_switching = None, False


def holders(state: PoolState, weight_version: int) -> list[Engine]:
    """Engines that may go on with what was begun with that version, now or when they have room."""
    ready = state.living(EngineState.READY)
    return [
        engine
        for engine in ready
        if engine.weight_version == weight_version and not (engine.is_switching or engine.is_quarantined)
    ]


def suits(state: PoolState, engine: Engine, request: Request) -> bool:
    """Whether its weights are new enough, and those that began it where they have to be."""
    begun = begun_with(state, request)
    return engine.weight_version >= request.order.min_weight_version and begun in (
        None,
        engine.weight_version,
    )


def has_other(state: PoolState, request: Request, names: Collection[str]) -> bool:
    """Whether any engine but those of these names may run it, now or when it has room."""
    ready = state.living(EngineState.READY)
    others = (one for one in ready if one.offer.name not in names and not one.is_quarantined)
    return any(suits(state, engine, request) for engine in others)


def begin_anew(state: PoolState, request: Request) -> None:
    """No engine has the weights any more that began it."""
    throw_away(state, request)
    state.episodes.pop(request.episode, None)


def hold_episode(state: PoolState, request: Request, engine: Engine) -> None:
    """Its episode has begun here, or goes on here."""
    if not request.order.episode:
        return
    if request.episode not in state.episodes and len(state.episodes) >= MAX_EPISODES:
        del state.episodes[next(iter(state.episodes))]
    state.episodes[request.episode] = (engine.weight_version, engine.engine_id)


def episode_ended(state: PoolState, event: events.EpisodeEnded) -> None:
    state.episodes.pop((event.run, event.episode), None)
