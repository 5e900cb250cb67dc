"""Events of an engine: registration, heartbeats, leases, its end."""

from rl_agent.pool.scheduler import crash_suspects, events, quarantine, weight_versions
from rl_agent.pool.scheduler.events import EngineChanged, ProbeEngine
from rl_agent.pool.scheduler.records import Engine, EngineState
from rl_agent.pool.scheduler.state import FLAP_WINDOW_S, PoolState, doubt, end_engine, renew_lease, set_timer

LONGEST_FLAP_PAUSE_S = 60.0
STALE_BEAT_S = 1.0


def registered(state: PoolState, event: events.Registered) -> None:
    offer = event.offer
    for engine in [e for e in state.engines.values() if e.offer.name == offer.name]:
        is_crash = engine.state is not EngineState.DRAINING
        end_engine(state, engine, "the same engine registered again", is_crash=is_crash)
    deaths = state.deaths_of_name.get(offer.name, [])
    recent = [died for died in deaths if state.now - died < FLAP_WINDOW_S]
    pause = min(LONGEST_FLAP_PAUSE_S, 2.0 ** (len(recent) - 2)) if len(recent) > 1 else 0.0
    engine = Engine(
        offer=offer,
        state=EngineState.REGISTERED,
        registered_at=state.now,
        lease_until=state.now + state.rules.lease_s,
        ready_after=state.now + pause,
        weights=event.weights,
    )
    state.engines[offer.engine_id] = engine
    set_timer(state, engine.lease_until, "lease", offer.engine_id)
    set_timer(state, state.now + state.rules.start_timeout_s, "start", offer.engine_id)
    if pause:
        set_timer(state, engine.ready_after, "pause", offer.engine_id)
    quarantine.keep_out(state, engine)
    state.commands += [EngineChanged(offer.engine_id, engine.state, ""), ProbeEngine(offer.engine_id)]


def probed(state: PoolState, engine: Engine, event: events.Probed) -> None:
    engine.model, engine.max_model_len = event.model, event.max_model_len
    renew_lease(state, engine)
    _trust(state, engine)
    if not state.model:
        state.model = event.model
    if engine.state is not EngineState.DRAINING:
        weight_versions.judge(state, engine)
    state.placement.changed(engine, state.now)


def probe_failed(state: PoolState, engine: Engine, event: events.ProbeFailed) -> None:
    engine.reason = event.problem
    set_timer(state, state.now + state.rules.probe_interval_s, "probe", engine.engine_id)


def beat(state: PoolState, engine: Engine, event: events.Beat) -> None:
    engine.load = event.load or engine.load
    if event.weights is not None:
        weight_versions.reported(state, engine, event.weights)
    if event.problem:
        _note_problem(state, engine, event.problem)
        return
    renew_lease(state, engine)
    # A beat just after a break may have set out before it.
    if engine.is_doubted and state.now - engine.doubted_at >= STALE_BEAT_S:
        _trust(state, engine)
        state.placement.changed(engine, state.now)


def _note_problem(state: PoolState, engine: Engine, problem: str) -> None:
    """Doubt an engine whose worker reports a problem, and probe it; what it still sends counts."""
    if engine.state is EngineState.READY:
        if not engine.is_doubted:
            state.commands.append(ProbeEngine(engine.engine_id))
        doubt(state, engine, problem)


def bytes_arrived(state: PoolState, engine: Engine, event: events.BytesArrived) -> None:
    renew_lease(state, engine)


def _trust(state: PoolState, engine: Engine) -> None:
    """Record that an engine is alive: what broke there did not crash it."""
    engine.is_doubted = False
    for request_id in engine.broken:
        if (request := state.requests.get(request_id)) is not None:
            crash_suspects.lives(request, engine)
    engine.broken.clear()


def engine_ended(state: PoolState, engine: Engine, event: events.EngineEnded) -> None:
    is_crash = event.is_crash and engine.state is not EngineState.DRAINING
    end_engine(state, engine, event.reason, is_crash=is_crash)


def lease_due(state: PoolState, engine: Engine) -> None:
    if engine.lease_until > state.now:
        set_timer(state, engine.lease_until, "lease", engine.engine_id)
        return
    last = engine.reason or "no sign of life"
    reason = f"its lease of {state.rules.lease_s:g} s is over: {last}"
    is_crash = engine.state is not EngineState.DRAINING
    end_engine(state, engine, reason, is_crash=is_crash)


def start_due(state: PoolState, engine: Engine) -> None:
    """End an engine that does not serve the wanted model after `start_timeout_s`."""
    if engine.state in (EngineState.REGISTERED, EngineState.LOADING):
        reason = f"not ready within {state.rules.start_timeout_s:g} s: {engine.reason or engine.state.value}"
        end_engine(state, engine, reason, is_crash=False)


def probe_due(state: PoolState, engine: Engine) -> None:
    if engine.state in (EngineState.REGISTERED, EngineState.LOADING) or engine.is_doubted:
        state.commands.append(ProbeEngine(engine.engine_id))
