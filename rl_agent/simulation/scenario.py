"""Setups that are compared: who generates, where, and what is paid for it.

static              the trainer's own devices generate, then train, in turns
on_demand           beside it engines that are always there, at the price of on-demand machines
elastic             beside it machines that come and go by the trace, at their price; requests move with
                    their tokens
elastic_recompute   the same, but what was generated is thrown away when its machine goes
elastic_hybrid      like elastic, and the trainer's devices generate, too, as long as that saves waiting
autoscaled          like elastic, but only as many machines are rented as the pool wants (`pool.scale`)
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from rl_agent.pool.demand.demand import WantedRules
from rl_agent.pool.scheduler.records import PoolRules
from rl_agent.simulation.devices import SharedEngines
from rl_agent.simulation.fleet import AutoscaledFleet, VirtualFleet
from rl_agent.simulation.loop import Loop
from rl_agent.simulation.speeds import EngineSpeed, TrainerSpeed
from rl_agent.simulation.spot import Change
from rl_agent.simulation.work import Work
from rl_agent.simulation.world import RentedPool

SETUPS = ("static", "on_demand", "elastic", "elastic_recompute", "elastic_hybrid", "autoscaled")
KIND = "rented"
"""Name of the one kind of machine."""
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
    """The price of one machine of the trace."""
    on_demand_price: float
    """The price of one that is always there."""
    on_demand_engines: int
    shared_engines: int
    """The engines that fit on the trainer's devices."""
    rules: PoolRules
    chunk: int
    wanted: WantedRules
    iterations: int | None
    """The number of iterations after which to end; None: when the time is over."""
    seed: int


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
    """The share of all sampled tokens that was lost."""
    prefilled_again_tokens: int
    waiting_share: float
    """The share of the time in which the trainer had nothing to do, or its devices generated."""
    engines_idle_share: float
    moves: int
    engine_deaths: int
    placement_fallbacks: int
    """Failures of the placement policy, in whose place least_work decided."""
    placement_fault: str
    """The last one."""


def rules_for_simulation(rules: PoolRules, resolution_s: float, chunk: int) -> PoolRules:
    """A pool's own, but it learns speeds and moves work only so often, which is most of what it computes.

    Tokens are counted in chunks.
    """
    interval_s = max(resolution_s, rules.rebalance_interval_s)
    return replace(
        rules,
        stall_timeout_s=NO_HANGING_S,
        rebalance_interval_s=interval_s,
        min_progress_tokens=max(1, rules.min_progress_tokens // chunk),
    )


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
    price = scenario.on_demand_price if setup == "on_demand" else scenario.engine_price
    world = RentedPool(rules=scenario.rules, chunk=scenario.chunk, on_ended=loop.ended, price_per_hour=price)
    if setup == "on_demand":
        for number in range(scenario.on_demand_engines):
            world.rent(f"on-demand-{number}", scenario.engine)
    elif setup == "autoscaled":
        _rent_as_wanted(scenario, loop, world)
    elif setup != "static":
        _plan(world, scenario.trace, scenario.engine)
    reached: deque[Outcome] = deque(maxlen=1)
    loop.last_iteration = scenario.iterations
    loop.on_published = lambda: reached.append(_outcome(setup, loop, scenario.trainer_price, price))
    loop.begin(world)
    if setup in ("static", "elastic_hybrid"):
        _share(scenario, "colocated" if setup == "static" else "hybrid", loop, world)
    slices = 200
    for number in range(1, slices + 1):
        if loop.has_ended:
            break
        world.run(scenario.until_s * number / slices)
        on_progress(number / slices)
    return reached[-1] if reached else None


def _rent_as_wanted(scenario: Scenario, loop: Loop, world: RentedPool) -> None:
    """Rent as many machines as the pool wants, as far as the trace has them."""
    fleet = VirtualFleet(world, scenario.engine, KIND, 0, scenario.seed)
    fleet.begin(scenario.trace)
    autoscaler = AutoscaledFleet(fleet, scenario.wanted, loop, scenario.trainer_price)
    autoscaler.is_last = lambda: scenario.iterations is not None and loop.submitted >= scenario.iterations
    loop.on_iteration = autoscaler.iteration_ended
    world.at(0.0, autoscaler.begin)


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


def _outcome(setup: str, loop: Loop, trainer_price: float, engine_price: float) -> Outcome:
    """Return what the setup has reached now, at the end of an iteration."""
    world, iterations = loop.world, loop.version
    hours, machine_hours, sampled = world.now / 3600, world.machine_hours(), world.sampled_tokens()
    cost = hours * trainer_price + machine_hours * engine_price
    lost = max(0.0, sampled - world.kept_tokens())
    return Outcome(
        setup=setup,
        iterations=iterations,
        hours=hours,
        engines=machine_hours / hours,
        tokens_per_s=loop.trained_tokens / world.now,
        cost_per_step=cost / iterations,
        cost_per_million_tokens=1e6 * cost / loop.trained_tokens,
        lost_tokens=lost,
        lost_share=lost / max(sampled, 1.0),
        prefilled_again_tokens=world.prefilled_again_tokens(),
        waiting_share=loop.waiting_s / world.now,
        engines_idle_share=world.idle_share(),
        moves=world.state.account.moves,
        engine_deaths=world.state.account.engine_deaths,
        placement_fallbacks=world.state.placement.fallbacks,
        placement_fault=world.state.placement.fault,
    )
