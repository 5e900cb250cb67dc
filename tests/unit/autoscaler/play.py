"""A reconciler's looks at a pretended world, for tests of what it decides."""

from rl_agent.autoscaler.fleet import Fleet
from rl_agent.autoscaler.observation import FleetObservation, PoolEngine, ScaleRules, WhenLost
from rl_agent.autoscaler.observe import stopped
from rl_agent.autoscaler.reconcile import Stop, decide
from rl_agent.pool.demand.records import EngineKind, MachineState, RentedMachine, Wanted

SPOT = EngineKind("spot", 1.0, 0, 4, 30.0)
DEAR = EngineKind("dear", 4.0, 0, 2, 30.0)
RULES = ScaleRules(
    start_timeout_s=300.0,
    drain_s=60.0,
    settle_s=30.0,
    backoff_s=10.0,
    backoff_limit_s=100.0,
    stop_again_s=20.0,
    manager_timeout_s=600.0,
    when_lost=WhenLost.MIN,
)


def types(actions):
    return [type(action) for action in actions]


def names(actions):
    return [action.name for action in actions]


class Play:
    """A reconciler's looks, one after the other."""

    stops_work = True

    def __init__(self, *kinds: EngineKind, fleet=None, rules=RULES):
        self.kinds = kinds or (SPOT,)
        self.rules = rules
        self.fleet = fleet or Fleet("f")
        self.now = 1000.0
        self.engines: dict[str, PoolEngine] | None = {}
        self.machines: list[RentedMachine] | None = []
        self.reason = "because"
        self.is_over = False

    def look(self, after_s=5.0, *, is_leaving=False, **counts):
        self.now += after_s
        wanted = Wanted(counts, self.reason) if self.engines is not None else None
        kinds = self.kinds if self.engines is not None else None
        listed = None if self.machines is None else tuple(self.machines)
        observation = FleetObservation(self.now, self.engines, wanted, kinds, listed, is_over=self.is_over)
        self.fleet, actions = decide(self.fleet, observation, self.rules, is_leaving=is_leaving)
        for action in actions:
            if isinstance(action, Stop) and self.stops_work:  # as its provider says
                self.fleet = stopped(self.fleet, action.name, self.now)
        return actions

    def comes(self, name, kind="spot", running=0, *, joins=True):
        self.machines.append(RentedMachine(name, kind, MachineState.RUNNING))
        if joins:
            self.engines[name] = PoolEngine(name, running, False)

    def goes(self, name):
        self.machines = [machine for machine in self.machines if machine.name != name]
        self.engines.pop(name, None)

    def serving(self, *names):
        """Look until these have come."""
        self.look(spot=len(names))
        for name in names:
            self.comes(name)
        self.look(spot=len(names))
        return self

    def at(self, stage):
        """The names of the machines at a stage."""
        return {name for name, machine in self.fleet.machines.items() if machine.stage is stage}

    def stage(self, name):
        return self.fleet.machines[name].stage
