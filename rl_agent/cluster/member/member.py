"""A node as a member of its run: what the phases of a node ask of the others.

enter ─► (a worker waits until the master has admitted it, the master until all ranks are there)
      ─► give_order / next_order ─► work, finish ─► wait_decision ─► … ─► end
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Self

from rl_agent.cluster.member import stacks
from rl_agent.cluster.member.coordinator import Coordinator
from rl_agent.cluster.member.heartbeat import Driver
from rl_agent.cluster.member.node import Node, in_background, print_line
from rl_agent.cluster.member.turns import Clock, Say
from rl_agent.cluster.member.work import Work
from rl_agent.cluster.protocol import records
from rl_agent.cluster.protocol.events import Awaited, Decided, Ordered, Regrouped
from rl_agent.cluster.protocol.flags import flag_record
from rl_agent.cluster.protocol.records import Decision, Flag, MemberView, Order, Outcome, PhaseKey
from rl_agent.cluster.protocol.stragglers import doing_of, missing_ranks
from rl_agent.cluster.shared_fs.folder import Folder, LoneFolder, SharedFolder, open_folder
from rl_agent.config import Plan
from rl_agent.errors import RetryLater

_NEWEST_FLAGS = 16


class Member(Node):
    """A context manager; thread-safe. Made by `enter` or `alone`."""

    def __init__(
        self,
        plan: Plan,
        *,
        folder: Folder,
        durable: Folder,
        is_joiner: bool = False,
        pid: int | None = None,
        driver: Driver | None = None,
        say: Say = print_line,
        clock: Clock = time.monotonic,
        in_background: Callable[[Callable[[], None]], None] = in_background,
    ) -> None:
        super().__init__(
            plan,
            folder=folder,
            durable=durable,
            is_joiner=is_joiner,
            pid=os.getpid() if pid is None else pid,
            driver=driver or Driver(None, say),
            say=say,
            clock=clock,
            in_background=in_background,
        )
        self._seq = 0
        """Number of the order that this node carries out."""
        self._flags: dict[str, Flag] = {}

    @classmethod
    def enter(
        cls, plan: Plan, environ: Mapping[str, str], *, is_joiner: bool = False, on_line: Say = print_line
    ) -> Self:
        """Become a member of the run of `plan`; returns when this node may begin.

        Raises DeadlineError after `cluster.start_timeout_s`, ConfigError if the master refuses this node,
        RetryLater if the log path has another run by now.
        """
        folder = open_folder(plan.config.log_path, environ)
        driver = Driver.of_environment(environ, on_line)
        member = cls(plan, folder=folder, durable=folder, is_joiner=is_joiner, driver=driver, say=on_line)
        member._heartbeat.update(stacks=stacks.register(plan.paths.run_dir(plan.run_id), member.incarnation))
        try:
            member.start()
        except BaseException as error:
            member.__exit__(type(error), error, error.__traceback__)
            raise
        return member

    @classmethod
    def alone(cls, plan: Plan) -> Self:
        """The only member of a run of one node, without threads; only its flags reach the log path."""
        command = plan.command.model_copy(update={"num_nodes": 1, "rank": 0, "rank_weights": (1,)})
        plan = plan.model_copy(update={"command": command})
        durable = SharedFolder(plan.config.log_path)
        member = cls(plan, folder=LoneFolder(), durable=durable, say=lambda line: None)
        member._heartbeat.beat()
        return member

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self._heartbeat.host})"

    @property
    def members(self) -> tuple[MemberView, ...]:
        return self.view.members if self.view else ()

    @property
    def is_alone(self) -> bool:
        """No other member is alive: whatever is not claimed yet is this node's."""
        return not any(m.status == "alive" and m.incarnation != self.incarnation for m in self.members)

    def participants(self) -> tuple[int, ...]:
        """Ranks that the present order goes on with: those of its participants that are alive.

        Asked by the master, it stays with them: of phases within this order no other node is waited for.
        """
        if self.coordinator is not None:
            self.coordinator.apply(Regrouped())
        order = self.view.order if self.view else None
        return order.ranks if order else ()

    def set_doing(self, text: str) -> None:
        """What this node is at; the others and `doctor` see it with the next beat."""
        self._heartbeat.update(doing=text)

    # --- orders and decisions ---
    def give_order(self, iteration: int, phase: str, words: tuple[str, ...] = ()) -> Order:
        """Let everybody carry out a phase now. One that was not decided may be ordered again."""
        self._master.apply(Ordered(PhaseKey(iteration, phase), words))
        order = self._master.state.order
        assert order is not None
        self._begin(order)
        return order

    def next_order(self) -> Order | None:
        """Wait for the next phase that concerns this node; None once the run has ended well."""
        self.set_doing("waiting for the next order")
        timeout_s = self._settings.phase_timeout_s
        (order,) = self._wait("the next order", self._new_order, self._masters_doing, timeout_s=timeout_s)
        if order is not None:
            self._begin(order)
        return order

    def finish(self, iteration: int, phase: str, outcome: Outcome, words: tuple[str, ...] = ()) -> None:
        """Say that this node is through with a phase; the master's words go into the decision."""
        key = PhaseKey(iteration, phase)
        self._durable.write_whole(self._places.flag(key, self.rank), flag_record(self.rank, outcome))
        self._flags[str(key)] = Flag(outcome=outcome, words=words, seq=self._seq)
        newest = dict(list(self._flags.items())[-_NEWEST_FLAGS:])
        self._heartbeat.update(flags=newest, doing=f"finished {phase} of iteration {iteration}")
        self._heartbeat.beat()
        self._hurry()

    def decision(self, iteration: int, phase: str) -> Decision | None:
        """What was decided about a phase, if anything was; what the master asks for will be."""
        key = PhaseKey(iteration, phase)
        if self.coordinator is None:
            return self.view.decisions.get(str(key)) if self.view else None
        state = self.coordinator.state
        if key not in state.decisions and key not in state.barriers:
            self.coordinator.apply(Awaited(key))
        return self.coordinator.state.decisions.get(key)

    def who_failed(self, iteration: int, phase: str) -> tuple[str, ...]:
        """Members that have said so of a phase; only the master knows that before it is decided."""
        peers = self._master.state.peers.values()
        flags = {peer.name: peer.flags.get(PhaseKey(iteration, phase)) for peer in peers}
        return tuple(name for name, flag in flags.items() if flag is not None and flag.outcome == "failed")

    @property
    def has_newer_order(self) -> bool:
        """The master has given up the order that this node carries out."""
        order = self.view.order if self.view else None
        return order is not None and order.seq > self._seq

    def wait_decision(self, iteration: int, phase: str, *, timeout_s: float) -> Decision:
        """Wait for what the master decides. Raises DeadlineError that names who has not finished."""
        key = PhaseKey(iteration, phase)
        if (recorded := self._recorded_decision(key)) is not None:
            return recorded
        what = f"iteration {iteration}, {phase}"
        return self._wait(
            what, lambda: self._decision_or_end(key), lambda: self.straggling(key), timeout_s=timeout_s
        )

    def decide(self, iteration: int, phase: str, outcome: Outcome, words: tuple[str, ...] = ()) -> None:
        """The master alone knows what became of a phase."""
        self._master.apply(Decided(PhaseKey(iteration, phase), outcome, tuple(words)))

    def answer_losses(self) -> None:
        """Do what `cluster.on_node_loss` says about ranks that are gone; asked before the next order.

        Raises RetryLater for `stop`, DeadlineError if nobody came within `cluster.replacement_timeout_s`.
        """
        settings = self._settings
        if settings.on_node_loss == "continue" or self._all_are_here():
            return
        lost = "; ".join(f"{peer.name} is gone: {peer.reason}" for peer in self._master.state.lost)
        if settings.on_node_loss == "stop":
            raise RetryLater(
                f"{lost}; with cluster.on_node_loss=stop the run ends here, and the same commands with"
                " --resume go on"
            )
        self._say(f"{lost}; with cluster.on_node_loss=wait somebody else has to take its place")
        timeout_s = settings.replacement_timeout_s
        self._wait("a replacement", self._all_are_here, self._missing, timeout_s=timeout_s)

    def work(self, iteration: int, phase: str) -> Work:
        """The chunks of a phase. Asked again, it goes on where this node broke off."""
        key = PhaseKey(iteration, phase)
        if self._work is not None and self._work.key == key:
            self._work.restart()
            return self._work
        self._work = Work(
            key,
            self,
            folder=self._folder,
            places=self._places,
            chunk_tasks=self._settings.chunk_tasks,
            coordinator=self.coordinator,
        )
        return self._work

    # --- within ---
    @property
    def _master(self) -> Coordinator:
        if self.coordinator is None:
            raise ValueError("only the master orders and decides")
        return self.coordinator

    def _begin(self, order: Order) -> None:
        self._seq = order.seq
        self.set_doing(f"{order.phase} of iteration {order.iteration}")

    def _new_order(self) -> tuple[Order | None] | None:
        """An order that this node has not carried out, is not over, and wants it; (None,) at the end."""
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
        found = self.decision(*key)
        view = self.view
        if found is None and view is not None and view.ended is not None:
            raise RetryLater(f"the master, rank 0 ({view.host}), has ended the run without deciding {key}")
        return found

    def _recorded_decision(self, key: PhaseKey) -> Decision | None:
        """One that is too old to be in the View; not one of an earlier start of this attempt."""
        record = self._durable.read(self._places.decision(key)) or {}
        is_ours = self.view is not None and record.pop("master", None) == self.view.master
        return records.parse(Decision, record) if is_ours else None

    def has_decision(self, key: PhaseKey) -> bool:
        return self.decision(*key) is not None

    def _masters_doing(self) -> str:
        return doing_of(self.view, self.record_of, 0)

    def _missing(self) -> str:
        return missing_ranks(self.view)
