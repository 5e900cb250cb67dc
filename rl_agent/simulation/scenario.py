"""Setups that are compared: who generates, where, and what is paid for it.

static              the trainer's own devices generate, then train, in turns
on_demand           beside it engines that are always there, at the price of on-demand machines
elastic             beside it machines that come and go by the trace, at their price; requests move with
                    their tokens
elastic_recompute   the same, but what was generated is thrown away when its machine goes
elastic_hybrid      like elastic, and the trainer's devices generate, too, as long as that saves waiting
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from rl_agent.pool.scheduler.records import PoolRules
from rl_agent.simulation.devices import SharedEngines
from rl_agent.simulation.loop import Loop, Marked
from rl_agent.simulation.speeds import EngineSpeed, TrainerSpeed
from rl_agent.simulation.spot import Change
from rl_agent.simulation.work import Work
from rl_agent.simulation.world import RentedPool

SETUPS = ("static", "on_demand", "elastic", "elastic_recompute", "elastic_hybrid")
NO_HANGING_S = 3600.0
"""No engine hangs here, and a long prompt may keep it from giving tokens for a while."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a simulation depends on."""

    work: Work
    trainer: TrainerSpeed
    engine: EngineSpeed
    trace: tuple[Change, ...]
    until_s: float
    max_staleness: int
    trainer_price: float
    """Dollars an hour, all of its devices."""
    engine_price: float
    """Of one machine of the trace."""
    on_demand_price: float
    """Of one that is always there."""
    on_demand_engines: int
    shared_engines: int
    """That fit on the trainer's devices."""
    rules: PoolRules
    chunk: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one setup, up to the last iteration that ended."""

    setup: str
    iterations: int
    hours: float
    engines: float
    """Rented machines, on average."""
    tokens_per_s: float
    """Generated and trained on, prompts included, over all the time."""
    cost_per_step: float
    """Dollars; a step is an iteration."""
    cost_per_million_tokens: float
    lost_tokens: float
    """Sampled, and sampled again or never used."""
    lost_share: float
    """Of all that were sampled."""
    prefilled_again_tokens: int
    waiting_share: float
    """Of the time the trainer had nothing to do, or its devices generated."""
    engines_idle_share: float
    moves: int
    engine_deaths: int


def rules_for_simulation(rules: PoolRules, resolution_s: float) -> PoolRules:
    """A pool's own, but it learns speeds and moves work only so often, which is most of what it computes."""
    interval_s = max(resolution_s, rules.rebalance_interval_s)
    return replace(rules, stall_timeout_s=NO_HANGING_S, rebalance_interval_s=interval_s)


def simulate(
    scenario: Scenario, setup: str, on_progress: Callable[[float], None] = lambda share: None
) -> Outcome | None:
    """Play it through; None if not a single iteration ended in time. `on_progress` gets the share done."""
    loop = Loop(
        scenario.work,
        scenario.trainer,
        scenario.max_staleness,
        can_continue=setup != "elastic_recompute",
    )
    world = RentedPool(rules=scenario.rules, chunk=scenario.chunk, on_ended=loop.ended)
    if setup == "on_demand":
        for number in range(scenario.on_demand_engines):
            world.rent(f"on-demand-{number}", scenario.engine)
    elif setup != "static":
        _plan(world, scenario.trace, scenario.engine)
    loop.begin(world)
    if setup in ("static", "elastic_hybrid"):
        _share(scenario, "colocated" if setup == "static" else "hybrid", loop, world)
    slices = 200
    for number in range(1, slices + 1):
        world.run(scenario.until_s * number / slices)
        on_progress(number / slices)
    price = scenario.on_demand_price if setup == "on_demand" else scenario.engine_price
    return None if loop.mark is None else _outcome(setup, loop.mark, scenario.trainer_price, price)


def _share(
    scenario: Scenario, placement: Literal["colocated", "hybrid"], loop: Loop, world: RentedPool
) -> None:
    """Let the trainer's devices generate, too."""
    engines, switch_s = scenario.shared_engines, scenario.trainer.switch_s
    shared = SharedEngines(placement, loop, world, scenario.engine, engines, switch_s)
    loop.open_window, loop.on_iteration = shared.are_generating, shared.begin_iteration
    shared.begin()


def _plan(world: RentedPool, trace: Sequence[Change], speed: EngineSpeed) -> None:
    for number, change in enumerate(trace):
        if change.is_join:
            world.at(change.at_s, partial(world.rent, f"spot-{number}", speed))
        else:
            world.at(change.at_s, partial(world.lose, with_notice=change.with_notice))


def _outcome(setup: str, mark: Marked, trainer_price: float, engine_price: float) -> Outcome:
    hours = mark.at_s / 3600
    cost = hours * trainer_price + mark.machine_hours * engine_price
    lost = max(0.0, mark.sampled_tokens - mark.kept_tokens)
    return Outcome(
        setup,
        mark.iterations,
        hours,
        mark.machine_hours / hours,
        mark.trained_tokens / mark.at_s,
        cost / mark.iterations,
        1e6 * cost / mark.trained_tokens,
        lost,
        lost / max(mark.sampled_tokens, 1.0),
        mark.prefilled_again_tokens,
        mark.waiting_s / mark.at_s,
        mark.engines_idle_share,
        mark.moves,
        mark.engine_deaths,
    )
