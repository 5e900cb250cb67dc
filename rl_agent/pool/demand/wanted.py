"""Decides how many engines of each kind are wanted. Pure: demand and memory in, decision and memory out.

    demand ─► the fleets that may be had, each one engine larger ─► the best of them ─► cooldown, hysteresis

While a trainer waits for what is sampled, the best fleet makes a step cheapest, the trainer's price included.
A step with n engines takes

    step(n) = (rest ^ 4 + (work / n) ^ 4) ^ (1 / 4), and no less than the trainer computes,

where `work` are the seconds that one engine needs for all that was sampled, and `rest` is what remains
however many engines there are (the trainer, the longest response), from the steps that were seen: about the
larger of the two. Tokens per dollar are highest where a step is cheapest. A trainer whose price is not known
gets the smallest fleet whose step is no more than `waiting_share` longer than with any number of engines:
what it waits for the longest response asks for none.

Without a trainer, the best fleet is the smallest that samples the queue within `finish_within_s`, or before
its deadline; it then stays until requests are too few for it. Where nothing else is coming, an engine that
would be ready only once the work is done is not asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rl_agent.pool.demand.demand import Demand, TrainerSteps, WantedRules
from rl_agent.pool.demand.records import EngineKind, Wanted
from rl_agent.pool.demand.scarcity import obtainable, scarce_words

DEAD_BAND = 0.02
"""Share of a step's cost by which another fleet must be cheaper to be taken."""
CLEARLY = 0.5
"""Share of `waiting_share` that a smaller fleet must keep to: steps differ, and an engine is not given back
and asked for again because of that."""
MOST_GROWTH = 2.0
"""A fleet grows and shrinks by at most this factor over the one whose speed was seen: beyond is a guess."""
STEPS_SEEN = 1.5
"""Steps of the trainer over which fewer must have been better."""
LONGEST_START_S = 600.0
"""An engine that takes longer to come stands in somebody's queue, where it costs nothing."""
LOOKAHEAD_S = 300.0
"""The rest of a run's dollars must pay the fleet for so long: it takes a while to give machines back."""
BEND = 4
"""The sharpness with which a step turns from having too few engines to having enough; 4 fits what
`simulation` does."""
MOST_USE = 1e6
HOUR_S = 3600.0
LEAST_S = 1e-9
"""The least divisor: a trainer may report any smaller time."""

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WantedMemory:
    """The memory that the next decision needs of those before."""

    wanted: Wanted | None = None
    since: float = 0.0
    """Time at which these counts were first wanted."""
    raised_at: float = float("-inf")
    began: float | None = None
    """Time of the first decision."""
    needs: tuple[tuple[float, Counts], ...] = ()
    """The counts that would have been best, and when; of the last `lower_after_s`."""
    ceiling: str = ""
    """The key that keeps more from being wanted; empty: none does."""


@dataclass(frozen=True, slots=True)
class _Choice:
    counts: Counts
    reason: str
    is_short: bool = False
    """More would be better than the largest fleet that may be had."""


@dataclass(frozen=True, slots=True)
class _Fleets:
    """The fleets that may be had, each one engine larger than the one before; the smallest may be empty."""

    counts: tuple[Counts, ...]
    speeds: tuple[float, ...]
    """Tokens per second, engines of no kind included."""
    dollars: tuple[float, ...] = field(default=())
    """The dollars per hour, likewise."""
    ceiling: str = ""


def decide_wanted(rules: WantedRules, memory: WantedMemory, demand: Demand, now: float) -> WantedMemory:
    """Return the memory after a decision; `memory.wanted` is what is wanted from now on."""
    rules = obtainable(rules, demand)
    fleets = _fleets(rules, demand)
    choice = _choose(rules, memory, demand, fleets)
    ceiling = fleets.ceiling if choice.is_short else ""
    oldest = now - lower_after_s(rules, demand)
    memory = replace(memory, needs=tuple(need for need in memory.needs if need[0] > oldest))
    counts = _steady(rules, memory, choice.counts, demand, fleets, now)
    before = memory.wanted.counts if memory.wanted is not None else {}
    has_changed = memory.wanted is None or dict(before) != dict(counts)
    is_raised = any(number > before.get(kind, 0) for kind, number in counts.items())
    words = f"{sum(counts.values())} wanted: {choice.reason}"
    if ceiling:
        words += f"; no more for pool.scale.{ceiling}"
    words += scarce_words(rules, demand)
    return replace(
        memory,
        wanted=Wanted(counts, words),
        since=now if has_changed else memory.since,
        raised_at=now if is_raised else memory.raised_at,
        began=now if memory.began is None else memory.began,
        needs=(*memory.needs, (now, choice.counts)),
        ceiling=ceiling,
    )


def _fleets(rules: WantedRules, demand: Demand) -> _Fleets:
    """Add engines one by one, first those that must be there, then the cheapest for what they sample."""
    counts = {kind.name: 0 for kind in rules.kinds}
    fleets, speeds, dollars, ceiling = [dict(counts)], [_speed(counts, demand)], [_price(rules, counts)], ""
    by_value = sorted(rules.kinds, key=lambda kind: (_price_of_speed(kind, demand), kind.name))
    least = [kind for kind in rules.kinds for _ in range(kind.min_engines)]
    more = [kind for kind in by_value for _ in range(kind.max_engines - kind.min_engines)]
    at_least = 0
    for number, kind in enumerate([*least, *more]):
        larger = counts | {kind.name: counts[kind.name] + 1}
        if key := _ceiling(rules, larger, demand):
            ceiling = key
            continue  # a cheaper kind may still fit
        counts = larger
        fleets.append(dict(counts))
        speeds.append(_speed(counts, demand))
        dollars.append(_price(rules, counts))
        if number < len(least):
            at_least = len(fleets) - 1
    return _Fleets(tuple(fleets[at_least:]), tuple(speeds[at_least:]), tuple(dollars[at_least:]), ceiling)


def _price_of_speed(kind: EngineKind, demand: Demand) -> float:
    return kind.price_per_hour / (demand.speed(kind.name) or 1.0)


def _speed(counts: Counts, demand: Demand) -> float:
    others = demand.present.get("", 0) * demand.speed("")
    return others + sum(number * demand.speed(kind) for kind, number in counts.items())


def _price(rules: WantedRules, counts: Counts) -> float:
    return sum(counts[kind.name] * kind.price_per_hour for kind in rules.kinds)


def _ceiling(rules: WantedRules, counts: Counts, demand: Demand) -> str:
    """Return the key of the ceiling that this fleet breaks; empty if it breaks none."""
    dollars = _price(rules, counts) + demand.other_dollars_per_hour
    if rules.max_dollars_per_hour is not None and dollars > rules.max_dollars_per_hour + 1e-9:
        return "max_dollars_per_hour"
    most = rules.max_dollars_per_run
    if most is not None and demand.spent + dollars * LOOKAHEAD_S / HOUR_S > most + 1e-9:
        return "max_dollars_per_run"
    return ""


def _choose(rules: WantedRules, memory: WantedMemory, demand: Demand, fleets: _Fleets) -> _Choice:
    steps = demand.steps
    if demand.open_requests == 0 and (steps is None or steps.is_last):
        kept = ", and min_engines stay" if sum(fleets.counts[0].values()) else ""
        return _Choice(fleets.counts[0], f"nothing is asked for{kept}")
    if not any(fleets.speeds) or not demand.speed(""):
        has_any = sum(fleets.counts[0].values()) + sum(demand.present.values()) > 0
        first = min(len(fleets.counts) - 1, int(not has_any))
        return _Choice(fleets.counts[first], "no engine's speed is known yet")
    if steps is not None and not steps.is_last and steps.lasted_s > 0 and steps.engine_s > 0:
        return _for_trainer(rules, memory, demand, fleets, steps)
    return _for_queue(rules, memory, demand, fleets)


def _for_trainer(
    rules: WantedRules, memory: WantedMemory, demand: Demand, fleets: _Fleets, steps: TrainerSteps
) -> _Choice:
    seen_engines = steps.engine_s / steps.lasted_s
    sizes = [speed / _mean_speed(demand) for speed in fleets.speeds]
    work_s = steps.tokens / (steps.engine_tokens_per_s or _mean_speed(demand))
    lasts = [_step_s(steps, work_s, seen_engines, size) for size in sizes]
    shortest_s = _step_s(steps, work_s, seen_engines, float("inf"))
    waits = [1 - shortest_s / max(step_s, LEAST_S) for step_s in lasts]
    near = [
        at
        for at, size in enumerate(sizes)
        if seen_engines / MOST_GROWTH <= size + 0.5 and size - 0.5 <= seen_engines * MOST_GROWTH
    ] or [min(range(len(sizes)), key=lambda at: abs(sizes[at] - seen_engines))]
    kept = _index_of(fleets, memory.wanted)
    if steps.price_per_hour:
        costs = {
            at: (steps.price_per_hour + demand.other_dollars_per_hour + fleets.dollars[at]) * lasts[at]
            for at in near
        }
        best = min(near, key=lambda at: (costs[at], at))
        if kept in costs and costs[kept] <= costs[best] * (1 + DEAD_BAND):
            best = kept
    else:
        best = next((at for at in near if waits[at] <= rules.waiting_share), near[-1])
        if best < kept:
            clearly = (at for at in near if waits[at] <= rules.waiting_share * CLEARLY)
            best = min(kept, next(clearly, near[-1]))
    reason = f"the trainer waited {steps.waited_s:.0f} s of {steps.lasted_s:.0f}"
    idle = steps.idle_s / steps.engine_s
    if idle >= 0.1:
        reason += f", the engines were idle for {idle:.0%}"
    is_short = best == len(fleets.counts) - 1 and waits[best] > rules.waiting_share
    return _Choice(fleets.counts[best], reason, is_short)


def _step_s(steps: TrainerSteps, work_s: float, seen_engines: float, engines: float) -> float:
    """Return how long a step like these would take with so many engines.

    `work_s` is what all that was sampled takes one engine that does all it can.
    """
    busy_s = steps.lasted_s - steps.waited_s
    if engines <= 0:
        return float("inf")
    use = min(1.0, work_s / max(seen_engines * steps.lasted_s, LEAST_S))
    then = min(MOST_USE, use * seen_engines / engines)
    still: float = max(0.0, 1 - use**BEND + then**BEND) ** (1 / BEND)
    return max(busy_s, steps.lasted_s * still)


def _mean_speed(demand: Demand) -> float:
    """Return the mean speed of the engines that are there."""
    count = sum(demand.present.values())
    total = sum(number * demand.speed(kind) for kind, number in demand.present.items())
    return total / count if count and total else demand.speed("")


def _for_queue(rules: WantedRules, memory: WantedMemory, demand: Demand, fleets: _Fleets) -> _Choice:
    within_s = rules.finish_within_s
    if demand.left_s is not None:
        within_s = max(1.0, min(within_s, demand.left_s))
    reason = f"{demand.open_tokens:,.0f} tokens are to be sampled within {within_s:.0f} s"
    useful = -(-demand.open_requests // max(1, demand.requests_each)) - demand.present.get("", 0)
    usable = [at for at, counts in enumerate(fleets.counts) if sum(counts.values()) <= max(0, useful)] or [0]
    enough = [at for at in usable if fleets.speeds[at] * within_s >= demand.open_tokens]
    best = enough[0] if enough else usable[-1]
    held = 0 if memory.wanted is None else sum(memory.wanted.counts.values())
    # What is given back once another kind has taken its place is no reason to want as many of that one.
    held = min(held, max((sum(counts.values()) for _, counts in memory.needs), default=held))
    best = max([best, *(at for at in usable if sum(fleets.counts[at].values()) <= held)])
    is_short = not enough and best == len(fleets.counts) - 1
    counts = _without_late(demand, fleets.counts[best], rules)
    if sum(counts.values()) < sum(fleets.counts[best].values()):
        reason += "; more would start too late"
    return _Choice(counts, reason, is_short)


def _without_late(demand: Demand, counts: Counts, rules: WantedRules) -> Counts:
    """Leave out engines that are not there and whose start would end after the work is done."""
    left_s = _time_with_present(demand)
    fleet = {}
    for kind in rules.kinds:
        start_s = _start_s(kind, demand)
        if start_s < left_s:
            fleet[kind.name] = counts[kind.name]
            continue
        in_time = sum(start_s - age < left_s for age in demand.awaited_s.get(kind.name, ()))
        there = demand.present.get(kind.name, 0) + in_time
        fleet[kind.name] = max(kind.min_engines, min(counts[kind.name], there))
    return fleet


def _time_with_present(demand: Demand) -> float:
    present = sum(number * demand.speed(kind) for kind, number in demand.present.items())
    return demand.open_tokens / present if present else float("inf")


def _index_of(fleets: _Fleets, demand: Wanted | None) -> int:
    """Return the place of the fleet that is wanted now; -1 if it may not be had any more."""
    if demand is None:
        return -1
    options = [dict(counts) for counts in fleets.counts]
    return options.index(dict(demand.counts)) if dict(demand.counts) in options else -1


def _steady(
    rules: WantedRules,
    memory: WantedMemory,
    need: Counts,
    demand: Demand,
    fleets: _Fleets,
    now: float,
) -> Counts:
    """Apply cooldown and hysteresis: raised at once but not twice in a row, lowered after a long time."""
    before = memory.wanted.counts if memory.wanted is not None else _present_of(rules, demand)
    lately = [counts for _, counts in memory.needs]
    may_raise = now - memory.raised_at >= rules.raise_after_s
    is_known = memory.began is not None and now - memory.began >= lower_after_s(rules, demand)
    fleet = {}
    for kind in rules.kinds:
        held = before.get(kind.name, 0)
        highest = max([need[kind.name], *(counts.get(kind.name, 0) for counts in lately)])
        lowest = highest if is_known else max(highest, held)
        count = min(held, lowest) if need[kind.name] <= held else (need[kind.name] if may_raise else held)
        fleet[kind.name] = max(kind.min_engines, min(count, kind.max_engines))
    return _within_ceilings(rules, fleet, demand)


def lower_after_s(rules: WantedRules, demand: Demand) -> float:
    """Return how long fewer must have been better.

    Never only one step of the trainer, which may be odd; and never less than an engine takes to start, or one
    would be given back before it comes, and asked for again.
    """
    steps = demand.steps
    start_s = max((_start_s(kind, demand) for kind in rules.kinds), default=0.0)
    steps_s = 0.0 if steps is None or steps.is_last else STEPS_SEEN * steps.lasted_s
    return max(rules.lower_after_s, min(start_s, LONGEST_START_S), steps_s)


def _start_s(kind: EngineKind, demand: Demand) -> float:
    return demand.start_s.get(kind.name, kind.start_s)


def _present_of(rules: WantedRules, demand: Demand) -> Counts:
    return {kind.name: min(kind.max_engines, demand.present.get(kind.name, 0)) for kind in rules.kinds}


def _within_ceilings(rules: WantedRules, counts: dict[str, int], demand: Demand) -> Counts:
    """Take away the dearest engines for what they sample until no ceiling is broken: ceilings come first."""
    dearest = sorted(rules.kinds, key=lambda kind: (-_price_of_speed(kind, demand), kind.name))
    for kind in dearest:
        while counts[kind.name] and kind.price_per_hour and _ceiling(rules, counts, demand):
            counts[kind.name] -= 1
    return counts
