"""Reports the state of a pool to people and to Prometheus."""

from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest

from rl_agent.config.plan import PoolConfig
from rl_agent.pool.runtime.runtime import Runtime
from rl_agent.pool.scheduler.records import Engine, EngineState, EngineTotals
from rl_agent.pool.scheduler.state import totals_of


def status_of(runtime: Runtime, config: PoolConfig) -> dict[str, Any]:
    """Return the state of the pool, for msgspec to encode; no prompts and no responses."""
    pool = runtime.pool
    state, now, account = pool.state, pool.clock(), pool.state.account
    engines = [_engine_status(engine, now) for engine in state.engines.values()]
    totals = totals_of(state, now)
    spent = totals.cost
    return {
        "model": state.model,
        "weight_version": state.weight_version,
        "weights_digest": state.weights.digest if state.weights else None,
        "requests": {
            "submitted": account.submitted,
            "open": pool.open_requests(),
            "running": sum(len(engine.running) for engine in state.engines.values()),
            "completed": account.completed,
            "failed": account.failed,
            "moves": account.moves,
        },
        "newest_moves": [
            {
                "run": move.request_id.run,
                "request": move.request_id.name,
                "from": move.source,
                "to": move.target,
                "tokens": move.tokens,
                "waited_s": move.waited_s,
                "reason": move.reason,
                "age_s": now - at,
            }
            for at, move in reversed(pool.newest_moves)
        ],
        "set_aside": {"count": pool.faults.count, "newest": list(pool.faults.newest)},
        "placement": {
            "policy": config.policy,
            "fallbacks": state.placement.fallbacks,
            "fault": state.placement.fault,
        },
        "tokens": account.tokens,
        "engine_deaths": account.engine_deaths,
        "wrong_answers": account.wrong_answers,
        "engines": engines,
        "wanted": runtime.scaling.answer().model_dump(),
        "runs": [
            {
                "name": run.name,
                "submitted": len(run.ids),
                "open": len(run.open),
                "ended": run.cursor,
                "acknowledged": run.acknowledged,
            }
            for run in runtime.runs.by_name.values()
        ],
        "totals": totals,
        "cost": {
            "spent": spent,
            "on_demand": totals.up_s / 3600 * config.on_demand_price_per_hour,
            "per_completed_request": spent / account.completed if account.completed else None,
            "per_million_tokens": 1e6 * spent / account.tokens if account.tokens else None,
        },
    }


def _engine_status(engine: Engine, now: float) -> dict[str, Any]:
    own = EngineTotals()
    own.add(engine, now)
    return {
        "id": engine.engine_id[:8],
        "name": engine.offer.name,
        "kind": engine.offer.kind,
        "state": engine.state.value,
        "reason": engine.reason,
        "is_doubted": engine.is_doubted,
        "is_quarantined": engine.is_quarantined,
        "wrong_answers": engine.wrong_answers,
        "model": engine.model,
        "weight_version": engine.weight_version,
        "weights_digest": engine.weights.digest or None,
        "is_fetching_weights": engine.weights.is_fetching,
        "weights_problem": engine.weights.problem,
        "weight_bytes": engine.received,
        "is_finishing": engine.finishing_since is not None,
        "finishing_s": own.finishing_s,
        "running": len(engine.running),
        "capacity": engine.offer.capacity,
        "tokens_per_s": engine.tokens_per_s,
        "useful_tokens": engine.useful_tokens,
        "recomputed_tokens": engine.recomputed_tokens,
        "prefilled_again_tokens": engine.prefilled_tokens,
        "idle_s": own.idle_s,
        "up_s": own.up_s,
        "lease_left_s": engine.lease_until - now,
        "kv_use": engine.load.kv_use if engine.load else None,
        "price_per_hour": engine.offer.price_per_hour,
        "cost": own.cost,
    }


def metrics_text(runtime: Runtime) -> str:
    """Return Prometheus text; two gauges have vLLM's names, so that a client of an engine can read them."""
    registry = CollectorRegistry()
    registry.register(_Collector(runtime))
    return generate_latest(registry).decode()


class _Collector:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> list[Metric]:
        state = self._runtime.pool.state
        running = sum(len(engine.running) for engine in state.engines.values())
        waiting = self._runtime.pool.open_requests() - running
        account = state.account
        engines = GaugeMetricFamily("rl_pool_engines", "Engines by state", labels=["state"])
        for kind in EngineState:
            if kind is not EngineState.GONE:
                engines.add_metric([kind.value], sum(1 for _ in state.living(kind)))
        requests = CounterMetricFamily(
            "rl_pool_requests", "Requests by what became of them", labels=["state"]
        )
        for name in ("submitted", "completed", "failed"):
            requests.add_metric([name], getattr(account, name))
        by_engine = CounterMetricFamily(
            "rl_pool_engine_tokens", "Tokens by engine and use", labels=["engine", "use"]
        )
        for engine in state.engines.values():
            by_engine.add_metric([engine.offer.name, "useful"], engine.useful_tokens)
            by_engine.add_metric([engine.offer.name, "recomputed"], engine.recomputed_tokens)
        totals = totals_of(state, self._runtime.pool.clock())
        weight_bytes = CounterMetricFamily(
            "rl_pool_weight_bytes",
            "Bytes of weights that came to engines, by where from",
            labels=["source"],
        )
        for source, size_bytes in asdict(totals.weight_bytes).items():
            weight_bytes.add_metric([source], size_bytes)
        scaling = self._runtime.scaling.answer()
        wanted = GaugeMetricFamily("rl_pool_wanted_engines", "Engines wanted by kind", labels=["kind"])
        present = GaugeMetricFamily("rl_pool_present_engines", "Engines ready by kind", labels=["kind"])
        for name, number in scaling.counts.items():
            wanted.add_metric([name], number)
            present.add_metric([name], scaling.present.get(name, 0))
        return [
            engines,
            wanted,
            present,
            requests,
            by_engine,
            weight_bytes,
            CounterMetricFamily("rl_pool_moves", "Requests moved to another engine", value=account.moves),
            CounterMetricFamily("rl_pool_engine_deaths", "Engines that died", value=account.engine_deaths),
            CounterMetricFamily(
                "rl_pool_wrong_answers",
                "Answers with what an engine cannot have sampled",
                value=account.wrong_answers,
            ),
            CounterMetricFamily(
                "rl_pool_set_aside",
                "Records and events set aside because they could not be handled",
                value=self._runtime.pool.faults.count,
            ),
            CounterMetricFamily(
                "rl_pool_placement_fallbacks",
                "Failures of the placement policy, in whose place least_work decided",
                value=state.placement.fallbacks,
            ),
            CounterMetricFamily("rl_pool_tokens", "Tokens sampled", value=account.tokens),
            CounterMetricFamily(
                "rl_pool_finishing_seconds",
                "Engine-seconds without new requests, to finish what older weights began",
                value=totals.finishing_s,
            ),
            GaugeMetricFamily("rl_pool_weight_version", "Version engines must serve", state.weight_version),
            GaugeMetricFamily("vllm:num_requests_running", "Requests at engines", value=running),
            GaugeMetricFamily("vllm:num_requests_waiting", "Requests without an engine", value=waiting),
        ]
