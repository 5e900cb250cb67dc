"""The worker of a node in its own run's pool: its engine and its settings, from the plan."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from yarl import URL

from rl_agent.config.plan import Plan
from rl_agent.engine.server import data_parallel_size, engine_argv, server_environment
from rl_agent.http.tokens import is_loopback
from rl_agent.pool import run_pool
from rl_agent.pool.gpu_turns import TurnFiles
from rl_agent.weights.settings import store_folder
from rl_agent.worker.engine_process import EngineCommand
from rl_agent.worker.engine_turns import EngineTurns
from rl_agent.worker.manager_client import own_address
from rl_agent.worker.settings import WorkerSettings

DRAIN_S = 5.0
"""The first half of the time after which `vllm_utils.sh` kills a worker; the rest is the engine's, to end."""


@dataclass(frozen=True, slots=True)
class RunEngine(EngineCommand):
    """The engine of a node, with the settings of the run's `engine` group, on a free port of loopback."""

    plan: Plan = field(kw_only=True)

    def words(self, model: str, port: int) -> list[str]:
        return engine_argv(self.plan, model, self.host, port)


def settings_of_run(plan: Plan, check_model: Callable[[str], object]) -> WorkerSettings:
    """Return the settings of this node's worker, once the master has started the manager.

    `check_model` raises StoreError for a model that is not as it was published. Raises DeadlineError if there
    is not a manager in time. `run.sh`, or its guard, removes the store of the weights however the run ends.
    """
    engine, manager = plan.config.engine, run_pool.wait_for_manager(plan)
    url = URL(manager)
    return WorkerSettings(
        manager=manager,
        read_token=partial(run_pool.token, plan, os.environ),
        name=run_pool.worker_name(plan),
        command=_engine_of(plan, os.environ),
        model=None,
        is_direct=is_loopback(url.host or ""),
        capacity=engine.max_num_seqs * data_parallel_size(plan.config, plan.hardware.num_gpus),
        price_per_hour=0.0,
        kind="",
        manager_timeout_s=engine.start_timeout_s,
        start_timeout_s=engine.start_timeout_s,
        drain_s=DRAIN_S,
        notice=None,
        log=plan.logs_dir / f"engine-{plan.attempt}.log",
        weights=plan.config.weights.model_copy(update={"store": store_folder(plan)}),
        address=own_address(url),
        tls_ca=run_pool.tls_ca(plan),
        check_model=check_model,
        turns=turns_of(plan),
    )


def _engine_of(plan: Plan, environ: Mapping[str, str]) -> RunEngine:
    variables = server_environment(plan.config, environ)
    key = variables.get("VLLM_API_KEY")
    return RunEngine("vllm", run_pool.LOOPBACK, key, (), variables, loads_weights=True, plan=plan)


def turns_of(plan: Plan) -> EngineTurns | None:
    """Return the turns of this node's engine with the trainer; None if the engine has GPUs of its own."""
    has_turns = plan.takes_turns and plan.is_master
    return EngineTurns(TurnFiles(run_pool.turn_file(plan))) if has_turns else None
