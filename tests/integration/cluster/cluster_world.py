"""A cluster in virtual time: real members over one folder that each sees late, and faults at chosen instants.

The threads of a member are turns that a scheduler takes, in an order drawn from a seed; its phases are a
generator that yields how long it is busy. So a run of minutes takes a fraction of a second and is repeatable.
"""

import asyncio
import heapq
import itertools
import random
from collections import Counter

from rl_agent.cluster.member.member import Member
from rl_agent.cluster.member.services import Driver, Services
from rl_agent.cluster.protocol.records import PhaseKey
from rl_agent.cluster.shared_fs.folder import MemoryFolder
from rl_agent.config.plan import Command, Plan
from rl_agent.errors import DeadlineError, HarnessError
from tests.support.cluster.lagging_folder import LaggingFolder

START_TIMEOUT_S = 300.0
GROUP = 2
"""Episodes of a task."""


class CountingFolder(MemoryFolder):
    """Remembers how often each name was written, and how much each node asked for."""

    def __init__(self):
        super().__init__()
        self.asking = ""
        self.operations = Counter()
        self.writes = Counter()

    def write_whole(self, name, record, *, is_durable=True):
        self.operations[self.asking] += 1
        self.writes[name] += 1
        super().write_whole(name, record, is_durable=is_durable)

    def read_if_changed(self, name, seen):
        self.operations[self.asking] += 1
        return super().read_if_changed(name, seen)

    def names(self, folder):
        self.operations[self.asking] += 1
        return super().names(folder)


class SimulatedNode:
    """A member, its turns, its phases, and the file it records in."""

    def __init__(self, world, name, rank, *, is_joiner=False):
        self.world, self.name, self.rank = world, name, rank
        self.lines = []
        self.failure = None
        self.is_killed = self.has_ended = False
        self.frozen_until = 0.0
        self.decisions = {}
        seed = world.random.randrange(2**32)
        folder = LaggingFolder(world.server, lag_s=world.lag_s, seed=seed, clock=world.clock)
        log = self.lines.append
        services = Services(folder, folder, Driver(None, log), log, world.clock, lambda job: job())
        self.member = Member(world.plan_of(rank), services, is_joiner=is_joiner, pid=1)
        self.member._heartbeat.send()
        script = world.master(self) if self.member.is_master else world.worker(self)
        for thread in self.member.make_threads():
            world.schedule(self, thread.poll_once)
        world.schedule(self, lambda: self.go_on(script))

    def go_on(self, script):
        """Carry the phases on: seconds that they are busy, None at their end."""
        try:
            return next(script)
        except StopIteration:
            self.end(None)
        except HarnessError as error:
            self.end(error)
        return None

    def end(self, error):
        self.failure = error
        self.has_ended = True
        self.member._leave(error)

    def record(self, work, episode):
        """Append to this node's file, as a rollout does: also a node that was given up does."""
        if work.shard is None:
            name = f"shard-{work.key.iteration}-{self.name}"
            self.world.shards[name] = []
            work.set_shard(name)
        self.world.shards[work.shard].append(episode)


class World:
    """`run` takes it to its end. `lag_s` is how late a node may see what others write.

    Threads look less often than they would, at `least_pause_s`, to make the simulation quick.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        num_nodes,
        seed,
        lag_s=0.0,
        iterations=2,
        tasks=18,
        later=4,
        training_s=(1.0, 20.0),
        least_pause_s=0.3,
    ):
        self.plan, self.num_nodes = plan, num_nodes
        self.training_s, self.least_pause_s = training_s, least_pause_s
        self.lag_s, self.iterations, self.tasks = lag_s, iterations, tasks
        self.later = later
        """Tasks that are added once the master has begun."""
        self.random, self.now = random.Random(seed), 0.0
        self.server = CountingFolder()
        self.shards, self.parts, self.nodes = {}, {}, []
        self.training = {}
        """Nodes that take part in a training by now."""
        self._order, self._queue, self._faults = itertools.count(), [], []

    def clock(self):
        return self.now

    def plan_of(self, rank):
        values = self.plan.command.model_dump()
        values |= {"num_nodes": self.num_nodes, "rank": rank, "rank_weights": (1,) * self.num_nodes}
        incarnation = f"{self.random.getrandbits(64):016x}"
        command = Command.model_validate(values)
        return self.plan.model_copy(update={"command": command, "incarnation": incarnation})

    def at(self, time, fault):
        """`fault` is a function of this world."""
        self._faults.append((time, next(self._order), fault))

    def start(self, rank, name=None, **kind):
        node = SimulatedNode(self, name or f"n{rank}", rank, **kind)
        self.nodes.append(node)
        return node

    def node(self, name):
        return next((node for node in self.nodes if node.name == name), None)

    def schedule(self, node, action, delay_s=0.0):
        entry = (self.now + delay_s, self.random.random(), next(self._order), node, action)
        heapq.heappush(self._queue, entry)

    def run(self, deadline_s):
        """Run until nobody does anything any more; fails if that takes longer than `deadline_s`."""
        heapq.heapify(self._faults)
        while self._queue:
            time = self._queue[0][0]
            if self._faults and self._faults[0][0] <= time:
                fault_time, _, fault = heapq.heappop(self._faults)
                self.now = max(self.now, fault_time)
                fault(self)
                continue
            time, _, _, node, action = heapq.heappop(self._queue)
            if node.is_killed or node.has_ended:
                continue
            self.now = max(self.now, time)
            assert self.now < deadline_s, f"still running: {[n.name for n in self.nodes if not n.has_ended]}"
            if node.frozen_until > self.now:
                self.schedule(node, action, node.frozen_until - self.now)
                continue
            self.server.asking = node.name
            pause_s = action()
            if pause_s is not None:
                self.schedule(node, action, max(pause_s, self.least_pause_s))

    # --- what nodes do ---
    def master(self, node):
        member = node.member
        yield from self.start_with_others(node, member._all_ranks_joined)
        for iteration in range(1, self.iterations + 1):
            member.give_order(iteration, "rollout")
            yield from self.collect(node, iteration)
            yield from self.meet(node, iteration, "rollout")
            outcome = "lost"
            while outcome == "lost":
                order = member.give_order(iteration, "update")
                outcome = yield from self.update(node, order)
        member.end(0)

    def worker(self, node):
        member = node.member
        yield from self.start_with_others(node, member._is_admitted)
        while True:
            member.check()
            news = member._new_order()
            if news is None:
                yield 0.5
                continue
            (order,) = news
            if order is None:
                return
            member._begin(order)
            if order.phase == "rollout":
                yield from self.collect(node, order.iteration)
                yield from self.meet(node, order.iteration, "rollout")
            else:
                yield from self.update(node, order)

    def start_with_others(self, node, is_ready):
        started = self.now
        while not is_ready():
            node.member.check()
            if self.now - started > START_TIMEOUT_S:
                raise DeadlineError(f"the start: waited for {node.member._awaited_at_start()}")
            yield 0.5

    def collect(self, node, iteration):
        member, work = node.member, node.member.work(iteration, "rollout")
        has_all = not member.is_master
        if member.is_master:
            work.on_lost = lambda shard: (len(self.shards[shard]), set(self.shards[shard]))
            groups = [range(first, first + GROUP) for first in range(0, self.tasks * GROUP, GROUP)]
            asyncio.run(work.publish(groups[: -self.later or None], digest="d", weight_version=1))
        while True:
            member.check()
            if not has_all and (len(work._claimed) > 1 or work._is_complete()):
                asyncio.run(work.publish(groups, digest="d", weight_version=1))
                has_all = True
            chunk = work.claim()
            if chunk is not None:
                for episode in chunk.indices:
                    yield self.random.uniform(0.1, 4.0)
                    node.record(work, episode)
                work.report(chunk.id)
            elif work._is_closed:
                return
            elif member.is_master and work._is_complete():
                self.parts[iteration] = asyncio.run(work.all_complete())
                work.close()
            else:
                yield 0.5

    def update(self, node, order):
        """A training that no participant can end without the others."""
        member, phase = node.member, f"train-{order.seq}"
        ready = self.training.setdefault((order.iteration, phase), set())
        yield self.random.uniform(*self.training_s)
        ready.add(member.incarnation)
        while ready < set(order.participants):
            member.check()
            if (decision := member.decision(order.iteration, phase)) is not None:
                node.decisions[order.iteration, phase] = decision
                return decision.outcome
            yield 1.0
        outcome = yield from self.meet(node, order.iteration, phase)
        if outcome != "lost":
            yield from self.meet(node, order.iteration, "update")
        return outcome

    def meet(self, node, iteration, phase):
        member = node.member
        if not member.has_decision(PhaseKey(iteration, phase)):
            member.finish(iteration, phase, "done")
        while (decision := member.decision(iteration, phase)) is None:
            member.check()
            yield 0.5
        node.decisions[iteration, phase] = decision
        return decision.outcome

    # --- what happens to them ---
    def kill(self, name):
        if node := self.node(name):
            node.is_killed = True

    def freeze(self, name, seconds):
        if node := self.node(name):
            node.frozen_until = self.now + seconds

    def leave(self, name):
        node = self.node(name)
        if node and not node.is_killed and not node.has_ended:
            node.end(SystemExit(143))

    # --- what must hold ---
    def check_counts(self):
        """Every episode of a finished rollout counts exactly once."""
        for parts in self.parts.values():
            files = [self.shards[part.name][: part.cut_bytes] for part in parts]
            assert Counter(itertools.chain(*files)) == Counter(range(self.tasks * GROUP))

    def check_decisions(self):
        """Made once, and the same for everybody."""
        for name, count in self.server.writes.items():
            assert count == 1 or not (name.endswith("decision.json") or "/chunks-" in name), (name, count)
        for node in self.nodes:
            for (iteration, phase), decision in node.decisions.items():
                name = node.member._paths.decision(PhaseKey(iteration, phase))
                assert self.server.read(name)["outcome"] == decision.outcome

    def say(self):
        """Return all reports, for a test that fails."""
        return {node.name: (node.lines, node.failure) for node in self.nodes}
