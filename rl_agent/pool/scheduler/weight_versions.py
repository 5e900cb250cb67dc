"""Models and weight versions: what the pool wants, and what each engine serves.

A version comes as a folder that engines are started on (`ModelWanted`), or as weights that workers fetch and
load while their engines generate (`WeightsWanted`). What an engine serves is what its probe and its worker
say of it, never what it was told to load:

    wanted, or up to `max_versions_behind` older     ready; its tokens are marked with its own version
    another model, unknown weights, or further back  loading
    behind for `weights_timeout_s` without progress  gone, with the reason that its worker gave
"""

import heapq
from zlib import crc32

from rl_agent.pool.scheduler import events, single_version
from rl_agent.pool.scheduler.records import Engine, EngineState, Weights
from rl_agent.pool.scheduler.reports import WeightsReport
from rl_agent.pool.scheduler.state import PoolState, change_engine, end_engine, move_all, set_timer

MAX_PEERS = 4
"""Other engines' hosts that one host is sent to."""
PUBLISHER_AHEAD_MS = 366 * 86_400_000
"""A publisher's number further ahead of the clock than this was given by no manager."""


def model_wanted(state: PoolState, event: events.ModelWanted) -> None:
    is_old = event.weight_version < state.weight_version
    is_of_published = event.weight_version == state.weight_version and state.weights is not None
    if (is_old or is_of_published) and not event.is_rollback:
        return
    state.model, state.model_version, state.weights = event.model, event.weight_version, None
    _judge_all(state)


def weights_wanted(state: PoolState, event: events.WeightsWanted) -> None:
    """Let the pool serve published weights; stale ones are skipped, the same ones update their sources."""
    if not takes(state, event.weights):
        return
    state.publisher = max(state.publisher, event.weights.publisher or 0)
    state.weights = event.weights
    _judge_all(state)


def place_taken(state: PoolState, event: events.PlaceTaken) -> None:
    """Let a publisher have the place of those with lower numbers; numbers are never given back."""
    state.publisher = max(state.publisher, event.publisher)


def next_publisher(state: PoolState, clock_ms: int) -> int:
    """Return the number of a publisher that takes the place now.

    The clock makes it higher than what an earlier manager gave that had no journal. Numbers go up whatever
    the clock does, and no publisher's own clock counts.
    """
    return max(state.publisher + 1, clock_ms)


def is_of_a_manager(number: int, state: PoolState, clock_ms: int) -> bool:
    """Return whether a manager can have given a publisher this number; an invented one has no later ones."""
    return number <= max(state.publisher, clock_ms + PUBLISHER_AHEAD_MS)


def is_superseded(state: PoolState, weights: Weights) -> bool:
    """Return whether a later publisher has the place of the one that publishes these weights."""
    return (weights.publisher or 0) < state.publisher


def takes(state: PoolState, weights: Weights) -> bool:
    """Return whether weights are newer than the pool's, or the same ones with other sources.

    Those of a publisher whose place is taken never are: it may be half alive, and its address dead.
    """
    if is_superseded(state, weights):
        return False
    if weights.weight_version > state.weight_version:
        return True
    present = state.weights
    return present is not None and (present.weight_version, present.digest) == (
        weights.weight_version,
        weights.digest,
    )


def _judge_all(state: PoolState) -> None:
    for engine in list(state.engines.values()):
        if engine.state is EngineState.DRAINING:
            _judge_draining(state, engine)
        elif engine.state is not EngineState.REGISTERED and engine.model:
            judge(state, engine)


def reported(state: PoolState, engine: Engine, report: WeightsReport) -> None:
    """Record a worker's report on its engine's weights."""
    was, engine.weights = engine.weights, report
    engine.received = engine.received.plus(report.received.since(was.received))
    single_version.follow(state, engine)
    is_news = (was.weight_version, was.digest) != (report.weight_version, report.digest)
    if engine.state is EngineState.DRAINING:
        _judge_draining(state, engine)
    elif is_news and engine.model:
        judge(state, engine)


def judge(state: PoolState, engine: Engine) -> None:
    """Decide by what an engine serves whether it is ready or loading. It was probed and does not drain."""
    before = engine.weight_version
    _note_version(state, engine)
    reason = _unusable(state, engine)
    _watch_progress(state, engine, has_moved=engine.weight_version != before)
    if not reason:
        if engine.state is not EngineState.READY:
            change_engine(state, engine, EngineState.READY, "")
            engine.idle_since = state.now
        state.placement.changed(engine, state.now)
        return
    if engine.state is not EngineState.LOADING:
        change_engine(state, engine, EngineState.LOADING, reason)
        set_timer(state, state.now + state.rules.start_timeout_s, "start", engine.engine_id)
        move_all(state, engine, reason)
    engine.reason = reason
    set_timer(state, state.now + state.rules.probe_interval_s, "probe", engine.engine_id)


def _judge_draining(state: PoolState, engine: Engine) -> None:
    """Decide by what an engine serves whether it may keep its remaining requests."""
    if engine.running:
        _note_version(state, engine)
        if reason := _unusable(state, engine):
            move_all(state, engine, reason)


def _note_version(state: PoolState, engine: Engine) -> None:
    before, loaded = engine.weight_version, engine.weights.weight_version
    engine.weight_version = state.model_version if loaded is None else loaded
    if engine.weight_version < before:  # a rollback: its requests may ask for more
        move_all(state, engine, f"its weights went back to version {engine.weight_version}")


def _unusable(state: PoolState, engine: Engine) -> str:
    """Return why the pool cannot use what the engine serves; empty if it can."""
    if engine.model != state.model:
        return f"serves {engine.model}, the pool wants {state.model}"
    version, wanted, loaded = engine.weight_version, state.weights, engine.weights
    if version > state.weight_version:
        return f"serves weight version {version}, which this pool does not know"
    if wanted is None and loaded.weight_version is not None:
        return f"serves weights that were loaded as version {version}, the pool wants those of the folder"
    if wanted is not None and version == wanted.weight_version and loaded.digest not in ("", wanted.digest):
        return f"serves other weights than version {version} of this pool"
    if state.weight_version - version > state.rules.max_versions_behind:
        return f"serves weight version {version}, the pool is at {state.weight_version}"
    return ""


def _watch_progress(state: PoolState, engine: Engine, *, has_moved: bool) -> None:
    if state.weights is None or engine.weight_version >= state.weight_version:
        engine.behind_since = None
    elif engine.behind_since is None or has_moved:
        engine.behind_since = state.now
        set_timer(state, state.now + state.rules.weights_timeout_s, "behind", engine.engine_id)


def behind_due(state: PoolState, engine: Engine) -> None:
    limit_s = state.rules.weights_timeout_s
    if engine.behind_since is None or engine.state is EngineState.DRAINING:
        return
    if engine.finishing_since is not None and not engine.is_switching:
        engine.behind_since = state.now
    if engine.behind_since + limit_s > state.now:
        set_timer(state, engine.behind_since + limit_s, "behind", engine.engine_id)
        return
    why = engine.weights.problem or "its worker does not say why"
    reason = f"stays at weight version {engine.weight_version} for {limit_s:g} s: {why}"
    end_engine(state, engine, reason, is_crash=False)


def sources_for(state: PoolState, engine: Engine) -> tuple[str, ...]:
    """Return the download sources for an engine's host: the publisher, then a few other hosts.

    Those that have it come before those that fetch it or soon will, which give on what they have verified.
    Each host is sent to peers in an order of its own, so that none is asked by all.
    """
    target = state.weights
    if target is None:
        return ()
    having: list[str] = []
    fetching: list[str] = []
    for peer in state.engines.values():
        report = peer.weights
        if report.source is None or peer is engine or peer.state is EngineState.DRAINING:
            continue
        has_it = (report.weight_version, report.digest) == (target.weight_version, target.digest)
        (having if has_it else fetching).append(report.source)

    def place(source: str) -> int:
        return crc32(f"{engine.engine_id} {source}".encode())

    peers = [*heapq.nsmallest(MAX_PEERS, having, place), *heapq.nsmallest(MAX_PEERS, fetching, place)]
    return (*target.sources, *dict.fromkeys(peers[:MAX_PEERS]))
