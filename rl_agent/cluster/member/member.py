"""A node as a member of its run: what the phases of a node ask of the other nodes.

enter ─► (a worker waits until the master has admitted it, the master until all ranks are there)
      ─► give_order / next_order ─► work, finish ─► wait_decision ─► … ─► end
"""

import os
import time
from collections.abc import Mapping
from typing import Self

from rl_agent.cluster.member.chunk_queue import ChunkQueue
from rl_agent.cluster.member.coordinator import Coordinator
from rl_agent.cluster.member.node import NodeProcess, print_line
from rl_agent.cluster.member.polling import Log
from rl_agent.cluster.member.services import Driver, Services, driver_pid
from rl_agent.cluster.protocol import records
from rl_agent.cluster.protocol.events import DecisionAwaited, OrderRegrouped, PhaseDecided, PhaseOrdered
from rl_agent.cluster.protocol.flags import flag_record
from rl_agent.cluster.protocol.records import Decision, Flag, MemberView, Outcome, PhaseKey, PhaseOrder
from rl_agent.cluster.protocol.stragglers import doing_of, missing_ranks
from rl_agent.cluster.shared_fs.folder import SharedFolder, SingleNodeFolder
from rl_agent.config.plan import Plan
from rl_agent.errors import RetryLater

_NEWEST_FLAGS = 16


class Member(NodeProcess):
    """A context manager, thread-safe; made by `enter` or `alone`."""

    def __init__(
        self, plan: Plan, services: Services, *, is_joiner: bool = False, pid: int | None = None
    ) -> None:
        super().__init__(plan, services, is_joiner=is_joiner, pid=os.getpid() if pid is None else pid)
        self._seq = 0
        """Number of the order that this node carries out."""
        self._flags: dict[str, Flag] = {}

    @classmethod
    def enter(
        cls, plan: Plan, environ: Mapping[str, str], *, is_joiner: bool = False, log: Log = print_line
    ) -> Self:
        """Become a member of the run of `plan`; returns when this node may begin.

        Raises DeadlineError after `cluster.start_timeout_s`, ConfigError if the master refuses this node,
        RetryLater if the log path has another run by now.
        """
        folder = SharedFolder(plan.config.log_path)
        services = Services(folder, folder, Driver(driver_pid(environ), log), log, time.monotonic)
        member = cls(plan, services, is_joiner=is_joiner)
        try:
            member.start()
        except BaseException as error:
            member.__exit__(type(error), error, error.__traceback__)
            raise
        return member

    @classmethod
    def alone(cls, plan: Plan) -> Self:
        """Make the only member of a run of one node, without threads; the log path gets only its flags."""
        command = plan.command.model_copy(update={"num_nodes": 1, "rank": 0, "rank_weights": (1,)})
        durable = SharedFolder(plan.config.log_path)
        driver = Driver(None, print_line)
        services = Services(SingleNodeFolder(), durable, driver, lambda line: None, time.monotonic)
        member = cls(plan.model_copy(update={"command": command}), services)
        member._heartbeat.send()
        return member

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self._heartbeat.host})"

    @property
    def members(self) -> tuple[MemberView, ...]:
        return self.view.members if self.view else ()

    @property
    def is_alone(self) -> bool:
        """Return whether no other member is alive: then every chunk that is not claimed is this node's."""
        return not any(m.status == "alive" and m.incarnation != self.incarnation for m in self.members)

    def participants(self) -> tuple[int, ...]:
        """Return the ranks of the present order that are alive.

        Called by the master, it removes the others from the order: its phases no longer wait for them.
        """
        if self.coordinator is not None:
            self.coordinator.apply(OrderRegrouped())
        order = self.view.order if self.view else None
        return order.ranks if order else ()

    def set_doing(self, text: str) -> None:
        """Say what this node is doing; other nodes and `doctor` see it with the next heartbeat."""
        self._heartbeat.update(doing=text)

    # --- orders and decisions ---
    def give_order(self, iteration: int, phase: str, words: tuple[str, ...] = ()) -> PhaseOrder:
        """Order all nodes to carry out a phase now; one that was not decided may be ordered again."""
        self._master.apply(PhaseOrdered(PhaseKey(iteration, phase), words))
        order = self._master.state.order
        assert order is not None
        self._begin(order)
        return order

    def next_order(self) -> PhaseOrder | None:
        """Wait for the next phase that concerns this node; None once the run has ended well."""
        self.set_doing("waiting for the next order")
        (order,) = self._wait(
            "the next order",
            self._new_order,
            lambda: doing_of(self.view, self.record_of, 0),
            timeout_s=self._settings.phase_timeout_s,
        )
        if order is not None:
            self._begin(order)
        return order

    def finish(self, iteration: int, phase: str, outcome: Outcome, words: tuple[str, ...] = ()) -> None:
        """Record that this node has finished a phase; the master's `words` go into the decision."""
        key = PhaseKey(iteration, phase)
        flag = flag_record(self.rank, outcome)
        self._services.durable.write_whole(self._paths.flag(key, self.rank), flag)
        self._flags[str(key)] = Flag(outcome=outcome, words=words, seq=self._seq)
        newest = dict(list(self._flags.items())[-_NEWEST_FLAGS:])
        self._heartbeat.update(flags=newest, doing=f"finished {phase} of iteration {iteration}")
        self._heartbeat.send()
        self._poll_often()

    def decision(self, iteration: int, phase: str) -> Decision | None:
        """Return what was decided about a phase, if it was; a phase that the master asks about will be."""
        key = PhaseKey(iteration, phase)
        if self.coordinator is None:
            return self.view.decisions.get(str(key)) if self.view else None
        state = self.coordinator.state
        if key not in state.decisions and key not in state.barriers:
            self.coordinator.apply(DecisionAwaited(key))
        return self.coordinator.state.decisions.get(key)

    def who_failed(self, iteration: int, phase: str) -> tuple[str, ...]:
        """Return the members that reported a failure of a phase, as only the master knows early."""
        peers = self._master.state.peers.values()
        flags = {peer.name: peer.flags.get(PhaseKey(iteration, phase)) for peer in peers}
        return tuple(name for name, flag in flags.items() if flag is not None and flag.outcome == "failed")

    @property
    def has_newer_order(self) -> bool:
        """Return whether the master has replaced the order that this node carries out."""
        order = self.view.order if self.view else None
        return order is not None and order.seq > self._seq

    def wait_decision(self, iteration: int, phase: str, *, timeout_s: float) -> Decision:
        """Wait for the master's decision. Raises DeadlineError that names the unfinished nodes."""
        key = PhaseKey(iteration, phase)
        if (recorded := self._recorded_decision(key)) is not None:
            return recorded
        what = f"iteration {iteration}, {phase}"
        return self._wait(
            what, lambda: self._decision_or_end(key), lambda: self.straggling(key), timeout_s=timeout_s
        )

    def decide(self, iteration: int, phase: str, outcome: Outcome, words: tuple[str, ...] = ()) -> None:
        """Decide a phase as the master, without waiting for the flags of the nodes."""
        self._master.apply(PhaseDecided(PhaseKey(iteration, phase), outcome, tuple(words)))

    def answer_losses(self) -> None:
        """Apply `cluster.on_node_loss` to missing ranks; called before the next order.

        Raises RetryLater for `stop`, DeadlineError if no node came within `cluster.replacement_timeout_s`.
        """
        settings = self._settings
        if settings.on_node_loss == "continue" or self._all_ranks_joined():
            return
        lost = "; ".join(f"{peer.name} is gone: {peer.reason}" for peer in self._master.state.lost)
        if settings.on_node_loss == "stop":
            raise RetryLater(
                f"{lost}; with cluster.on_node_loss=stop the run ends here: start all nodes again, rank 0"
                " with --resume"
            )
        self._services.log(f"{lost}; with cluster.on_node_loss=wait another node has to take its place")
        self._wait(
            "a replacement",
            self._all_ranks_joined,
            lambda: missing_ranks(self.view),
            timeout_s=settings.replacement_timeout_s,
        )

    def work(self, iteration: int, phase: str) -> ChunkQueue:
        """Return the chunks of a phase; called again, they continue where this node was interrupted."""
        key = PhaseKey(iteration, phase)
        if self._queue is not None and self._queue.key == key:
            self._queue.restart()
        else:
            chunk_tasks = self._settings.chunk_tasks
            self._queue = ChunkQueue(key, self, self._services.folder, self._paths, chunk_tasks=chunk_tasks)
        return self._queue

    # --- within ---
    @property
    def _master(self) -> Coordinator:
        if self.coordinator is None:
            raise ValueError("only the master orders and decides")
        return self.coordinator

    def _begin(self, order: PhaseOrder) -> None:
        self._seq = order.seq
        self.set_doing(f"{order.phase} of iteration {order.iteration}")

    def _new_order(self) -> tuple[PhaseOrder | None] | None:
        """Return a new open order for this node, or (None,) once the run has ended."""
        view = self.view
        if view is None or view.ended is not None:
            return (None,) if view else None
        order, work = view.order, view.work
        if order is None or order.seq <= self._seq or str(order.key) in view.decisions:
            return None
        is_closed = work is not None and (work.iteration, work.phase) == order.key and work.is_closed
        is_open_to_all = order.key.is_collecting and not is_closed
        return (order,) if is_open_to_all or self.incarnation in order.participants else None

    def _decision_or_end(self, key: PhaseKey) -> Decision | None:
        decision = self.decision(*key)
        view = self.view
        if decision is None and view is not None and view.ended is not None:
            raise RetryLater(f"the master, rank 0 ({view.host}), has ended the run without deciding {key}")
        return decision

    def _recorded_decision(self, key: PhaseKey) -> Decision | None:
        """Read a decision that is too old for the View, unless an earlier start of this attempt made it."""
        record = self._services.durable.read(self._paths.decision(key)) or {}
        is_ours = self.view is not None and record.pop("master", None) == self.view.master
        return records.parse(Decision, record) if is_ours else None

    def has_decision(self, key: PhaseKey) -> bool:
        """Return whether a phase was decided."""
        return self.decision(*key) is not None
