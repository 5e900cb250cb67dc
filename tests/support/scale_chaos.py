"""A fleet in virtual time whose provider lies, hangs and forgets, whose manager and reconciler are killed.

The reconciler is the real one (`ReconcileLoop`), cut off at any await as `kill -9` does; machines, pool and
provider are pretended. A provider's late or wrong answer becomes right within `LATEST_S`, below the rules'
`settle_s`: under that assumption no limit is ever passed. Faults stop in the end; then all must come right.
"""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from rl_agent.autoscaler.fleet import Fleet
from rl_agent.autoscaler.manager_link import HttpManager
from rl_agent.autoscaler.observation import PoolEngine, PoolView, ScaleRules, WhenLost
from rl_agent.autoscaler.reconcile_loop import ReconcileLoop, ReconcileTimeouts
from rl_agent.pool.demand.records import EngineKind, MachineState, ProviderError, RentedMachine, Wanted

LATEST_S = 40.0
SETTLE_S = 60.0
FAULTS_END_S = 3600.0
SETTLED_BY_S = FAULTS_END_S + 3600.0
KINDS = (EngineKind("spot", 1.0, 0, 5, 30.0), EngineKind("dear", 3.5, 0, 2, 60.0))
RULES = ScaleRules(
    start_timeout_s=240.0,
    drain_s=60.0,
    settle_s=SETTLE_S,
    backoff_s=10.0,
    backoff_limit_s=300.0,
    stop_again_s=20.0,
    manager_timeout_s=600.0,
    when_lost=WhenLost.MIN,
    max_engines=6,
    max_price_per_hour=9.0,
)
TIMES = ReconcileTimeouts(poll_s=5.0, call_timeout_s=30.0)
STRANGERS = ("trainer-node", "rl-7", "rl-7-3-b", "rl-70-1", "rl-7-0")
"""Machines and engines of others, named to be mistaken for the fleet `rl-7`."""


class ReconcilerKilled(BaseException):
    """The reconciler is gone in the middle of what it did."""


@dataclass(slots=True)
class TrueMachine:
    """A machine as it really is."""

    name: str
    kind: str
    joins_at: float
    drained_at: float | None = None
    """The time at which its engine leaves the pool; None: nobody drains it."""


@dataclass(slots=True)
class ScaleWorld:
    """One history. Everything that is really there, and what went wrong."""

    seed: int
    rules: ScaleRules = RULES
    random_: random.Random = field(init=False)
    alive: list[TrueMachine] = field(default_factory=list)
    intended: set[str] = field(default_factory=set)
    """Names that were written down to be asked for."""
    requested: set[str] = field(default_factory=set)
    wanted: dict[str, int] = field(default_factory=lambda: {"spot": 1, "dear": 0})
    file: Fleet = field(default_factory=lambda: Fleet("rl-7"))
    """The state that the reconciler has written down."""
    manager_down_until: float = 0.0
    omitting_until: float = 0.0
    """The provider leaves machines out of its list until then."""
    happened: Counter[str] = field(default_factory=Counter)
    past: list[tuple[float, list[RentedMachine]]] = field(default_factory=list)
    """The lists that a truthful provider would have given."""
    wrong: list[str] = field(default_factory=list)
    """Limits that were passed: noted, for a timer's exception ends nothing."""

    def __post_init__(self) -> None:
        self.random_ = random.Random(self.seed)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def is_faulty(self) -> bool:
        return self.now < FAULTS_END_S

    def draw(self, **shares: float) -> str:
        """Return one of the faults by its share, or an empty word; none once faults have stopped."""
        at = self.random_.random()
        for name, share in shares.items() if self.is_faulty else ():
            if at < share:
                self.happened[name] += 1
                return name
            at -= share
        return ""

    def ours(self) -> list[TrueMachine]:
        return [machine for machine in self.alive if machine.name in self.requested]

    def joined(self) -> list[TrueMachine]:
        return [
            machine for machine in self.alive if machine.joins_at <= self.now < (machine.drained_at or 1e12)
        ]

    def check(self) -> None:
        """Hold the limits: a name whose machine its provider made twice counts once."""
        kinds = {machine.name: machine.kind for machine in self.ours()}
        counts = Counter(kinds.values())
        dollars = sum(kind.price_per_hour * counts[kind.name] for kind in KINDS)
        assert RULES.max_engines is not None and RULES.max_price_per_hour is not None
        if any(counts[kind.name] > kind.max_engines for kind in KINDS) or len(kinds) > RULES.max_engines:
            self.wrong.append(f"at {self.now:.0f} s above max: {kinds}")
        if dollars > RULES.max_price_per_hour:
            self.wrong.append(f"at {self.now:.0f} s above the ceiling: {kinds}")

    def listed(self) -> list[RentedMachine]:
        return [
            RentedMachine(
                machine.name,
                machine.kind,
                MachineState.RUNNING if machine.joins_at < self.now else MachineState.PENDING,
            )
            for machine in self.alive
        ]

    def begin(self, name: str, kind: str) -> None:
        never = self.draw(never_joins=0.1)
        start_s = 1e9 if never else self.random_.uniform(5.0, 90.0)
        self.alive.append(TrueMachine(name, kind, self.now + start_s))
        self.check()

    def maybe_kill(self) -> None:
        if self.draw(reconciler_killed=0.01):
            raise ReconcilerKilled

    async def run(self) -> None:
        """Let it go wrong for an hour, then come right, then end."""
        for name in STRANGERS:
            self.alive.append(TrueMachine(name, "spot", 0.0))
        async with asyncio.TaskGroup() as jobs:
            trouble = jobs.create_task(self.trouble())
            await self.reconcile_until(FAULTS_END_S)
            trouble.cancel()
        self.wanted = {"spot": self.random_.randint(0, 5), "dear": self.random_.randint(0, 1)}
        await self.reconcile_until(SETTLED_BY_S)
        counts = Counter(machine.kind for machine in self.joined() if machine.name in self.requested)
        assert counts == Counter(self.wanted), f"wanted {self.wanted}, there are {counts}"
        assert len(self.ours()) == sum(self.wanted.values()), "a machine is there that is not wanted"
        assert await self.reconcile_loop().end_all(1200.0), f"not ended: {self.file.machines}"
        await asyncio.sleep(2 * LATEST_S)
        assert not self.ours(), f"leaked: {self.ours()}"
        assert not self.wrong, self.wrong[0]

    def reconcile_loop(self) -> ReconcileLoop:
        """Return the reconciler as it starts on what is written down."""
        return ReconcileLoop(
            self.file,
            _Provider(self),
            _Manager(self),
            self.rules,
            TIMES,
            write=self.write,
            report=lambda line: None,
            clock=lambda: self.now,
        )

    def write(self, fleet: Fleet) -> None:
        self.maybe_kill()
        self.file = fleet
        self.intended |= {machine.name for machine in fleet.machines.values() if not machine.was_listed}
        self.maybe_kill()

    async def reconcile_until(self, until: float) -> None:
        """Run the reconciler, and again after each time it was killed."""
        while self.now < until:
            lives_s = self.random_.uniform(1.0, 900.0) if self.is_faulty else until - self.now
            with suppress(TimeoutError):
                async with asyncio.timeout(min(lives_s, until - self.now)):
                    try:
                        await self.reconcile_loop().run(asyncio.Event())
                    except* ReconcilerKilled:
                        pass
            if self.is_faulty:
                self.happened["reconciler restarted"] += 1
                await asyncio.sleep(self.random_.choice([0.0, 1.0, 120.0]))

    async def trouble(self) -> None:
        """Change what is wanted, take machines away, restart the manager."""
        while True:
            await asyncio.sleep(self.random_.uniform(5.0, 120.0))
            match self.random_.choice(["wanted", "wanted", "spot is taken", "manager", "omits"]):
                case "wanted":
                    self.wanted = {"spot": self.random_.randint(0, 7), "dear": self.random_.randint(0, 3)}
                case "spot is taken" if ours := self.ours():
                    self.happened["machine taken away"] += 1
                    self.alive.remove(self.random_.choice(ours))
                case "manager":
                    self.happened["manager restarted"] += 1
                    self.manager_down_until = self.now + self.random_.choice([1.0, 20.0, 60.0, 900.0])
                case "omits" if self.now > self.omitting_until + SETTLE_S:
                    self.happened["list leaves machines out"] += 1
                    self.omitting_until = self.now + self.random_.uniform(1.0, LATEST_S)

    def remember(self) -> None:
        self.past.append((self.now, self.listed()))
        while self.past[0][0] < self.now - LATEST_S:
            self.past.pop(0)


class _Provider:
    """Starts and stops the pretended machines, seldom as it was told."""

    def __init__(self, world: ScaleWorld) -> None:
        self._world = world

    async def start(self, name: str, kind: EngineKind) -> None:
        world = self._world
        assert name in world.file.machines, "asked for before it was written down"
        assert name not in world.requested, "a name was used twice"
        world.requested.add(name)
        world.maybe_kill()
        match world.draw(
            start_fails=0.1, start_lies=0.05, start_hangs=0.1, forgets_start=0.08, starts_twice=0.05, slow=0.1
        ):
            case "start_fails":
                raise ProviderError("no capacity")
            case "start_lies":
                self._later(name, kind.name)
                raise ProviderError("an internal error")
            case "start_hangs":
                if world.random_.random() < 0.6:
                    self._later(name, kind.name)
                await asyncio.Event().wait()
            case "forgets_start":
                return
            case "starts_twice":
                world.begin(name, kind.name)
                world.begin(name, kind.name)
            case "slow":
                self._later(name, kind.name)
                await asyncio.sleep(world.random_.uniform(1.0, 60.0))
            case _:
                world.begin(name, kind.name)
        world.maybe_kill()

    def _later(self, name: str, kind: str) -> None:
        # A list may be late or incomplete on top of that: together they stay within `settle_s`.
        delay_s = self._world.random_.uniform(0.0, SETTLE_S - LATEST_S)
        asyncio.get_running_loop().call_later(delay_s, self._world.begin, name, kind)

    async def stop(self, name: str) -> None:
        world = self._world
        assert name in world.intended, f"{name} was never this fleet's"
        world.maybe_kill()
        victim = name
        match world.draw(stop_fails=0.1, stop_hangs=0.1, forgets_stop=0.1, stops_wrong=0.05, slow_stop=0.1):
            case "stop_fails":
                raise ProviderError("try again")
            case "stop_hangs":
                await asyncio.Event().wait()
            case "forgets_stop":
                return
            case "stops_wrong":
                alive = [machine.name for machine in world.alive]  # all may be gone
                victim = world.random_.choice(alive or [name])
            case "slow_stop":
                await asyncio.sleep(world.random_.uniform(1.0, 60.0))
        world.alive = [machine for machine in world.alive if machine.name != victim]
        world.maybe_kill()

    async def machines(self) -> list[RentedMachine]:
        world = self._world
        world.remember()
        match world.draw(list_fails=0.05, list_hangs=0.03, list_late=0.2):
            case "list_fails":
                raise ProviderError("this is not JSON")
            case "list_hangs":
                await asyncio.Event().wait()
            case "list_late":
                return world.random_.choice(world.past)[1]
        machines = world.listed()
        if world.is_faulty and world.now < world.omitting_until:
            return [machine for machine in machines if world.random_.random() < 0.5]
        return machines


class _Manager(HttpManager):
    """The pretended pool: it has the engines that have joined, and drains within the deadline."""

    def __init__(self, world: ScaleWorld) -> None:
        super().__init__("http://127.0.0.1:5000", lambda: None, lambda: None)
        self._world = world

    async def view(self) -> PoolView:
        world = self._world
        if world.is_faulty and world.now < world.manager_down_until:
            raise ProviderError("the manager does not answer")
        names = {machine.name: machine for machine in world.joined()}
        if world.is_faulty and world.now < world.manager_down_until + 3.0:
            names = {}  # they register again
        engines = {
            name: PoolEngine(name, world.random_.randint(0, 9), machine.drained_at is not None)
            for name, machine in names.items()
        }
        return PoolView(engines, Wanted(dict(world.wanted), "drawn from a seed"), KINDS)

    async def drain(self, name: str, deadline_s: float, why: str) -> None:
        world = self._world
        assert name in world.intended, f"{name} was never this fleet's"
        if world.draw(drain_fails=0.1) or (world.is_faulty and world.now < world.manager_down_until):
            raise ProviderError("the manager does not answer")
        for machine in world.joined():
            if machine.name == name and machine.drained_at is None:
                machine.drained_at = world.now + world.random_.uniform(0.0, deadline_s)
