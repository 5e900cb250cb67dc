"""Virtual time: what is planned happens once, in order, and commands reach the engines they are for."""

from dataclasses import dataclass, field

from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import EngineOffer, Order, RequestId
from rl_agent.simulation.virtual_pool import MODEL, VirtualPool
from tests.support.pool_world import RULES


class Engine:
    def __init__(self):
        self.begun, self.aborted = [], []

    def begin(self, request, attempt):
        self.begun.append((request.request_id.name, attempt))

    def abort(self, key):
        self.aborted.append((key[0].name, key[1]))


@dataclass(slots=True, kw_only=True)
class Pool(VirtualPool[Engine]):
    ended: list = field(default_factory=list)

    def _probe(self, engine_id):
        self.at(self.now + 1.0, lambda: self.handle(events.Probed(engine_id, MODEL, 0)))

    def _on_ended(self, request):
        self.ended.append((self.now, request.failure))


def pool_with(*requests):
    pool = Pool(rules=RULES, chunk=1)
    engine = pool.engines["e"] = Engine()
    pool.handle(events.Registered(EngineOffer("e", "e", 8)))
    for name in requests:
        pool.handle(events.Submitted(Order(RequestId("run", name), (1, 2), 8, {}, deadline=4.0)))
    return pool, engine


def test_plans_are_carried_out_in_time_and_those_of_one_moment_in_order():
    pool, done = Pool(rules=RULES, chunk=1), []
    for when, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "late")):
        pool.at(when, lambda name=name: done.append((pool.now, name)))
    pool.run(3.0)
    assert done == [(1.0, "a"), (1.0, "b"), (2.0, "c")] and pool.now == 3.0
    pool.run_while(lambda: True)
    assert done[-1] == (9.0, "late") and not pool.agenda


def test_requests_reach_probed_engines_and_cancelled_ones_leave_them():
    pool, engine = pool_with("r0", "r1")
    assert engine.begun == []
    pool.run(1.5)
    assert engine.begun == [("r0", 1), ("r1", 1)]
    pool.handle(events.Cancelled(RequestId("run", "r0")))
    assert engine.aborted == [("r0", 1)]


def test_timers_of_the_scheduler_wake_it_at_their_time():
    pool, _ = pool_with("r0")
    pool.run(4.5)
    [(when, failure)] = pool.ended
    assert when == 4.0 and "deadline" in failure
