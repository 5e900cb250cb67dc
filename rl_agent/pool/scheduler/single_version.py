"""Responses of one version: engines drain requests of the old version before they load new weights. Pure.

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
"""The most episodes of all runs together; those of the run that began first are forgotten."""


def follow(state: PoolState, engine: Engine) -> None:
    """Update an engine after a report on its weights: it finishes, may switch, or is done."""
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
    """Return whether nothing is left that only this engine's weights may continue."""
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
    """Record that the engine has loaded the weights, or tries again later."""
    if engine.finishing_since is not None and not engine.is_switching:
        engine.finishing_s += now - engine.finishing_since
    engine.finishing_since, engine.is_switching = None, False


def engines_with_version(state: PoolState, weight_version: int) -> list[Engine]:
    """Return the engines that may continue what was begun with a version, now or when they have room."""
    ready = state.living(EngineState.READY)
    return [
        engine
        for engine in ready
        if engine.weight_version == weight_version and not (engine.is_switching or engine.is_quarantined)
    ]


def may_run(state: PoolState, engine: Engine, request: Request) -> bool:
    """Return whether the engine's weights are new enough, and the ones that began the request if required."""
    begun = begun_with(state, request)
    return engine.weight_version >= request.order.min_weight_version and begun in (
        None,
        engine.weight_version,
    )


def may_run_elsewhere(state: PoolState, request: Request, names: Collection[str]) -> bool:
    """Return whether an engine with another name may run the request, now or when it has room."""
    ready = state.living(EngineState.READY)
    others = (engine for engine in ready if engine.offer.name not in names and not engine.is_quarantined)
    return any(may_run(state, engine, request) for engine in others)


def begin_anew(state: PoolState, request: Request) -> None:
    """Restart a request whose weights no engine has any more."""
    throw_away(state, request)
    state.episodes.pop(request.episode, None)


def hold_episode(state: PoolState, request: Request, engine: Engine) -> None:
    """Record the engine and version of an episode's newest turn."""
    if not request.order.episode:
        return
    if request.episode not in state.episodes and len(state.episodes) >= MAX_EPISODES:
        del state.episodes[next(iter(state.episodes))]
    state.episodes[request.episode] = (engine.weight_version, engine.engine_id)


def episode_ended(state: PoolState, event: events.EpisodeEnded) -> None:
    state.episodes.pop((event.run, event.episode), None)
