"""One process of a run: its heartbeat, its view of the other nodes, and its waits.

Two daemon threads belong to it: the heartbeat, and one that polls the others (the workers' records if this
node is the master, else the master's View). An error in one of them is logged once, ends every wait, and is
raised by `check`. The threads end with the context manager.
"""

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from rl_agent.cluster.member.chunk_queue import ChunkQueue
from rl_agent.cluster.member.coordinator import Coordinator, pause_after
from rl_agent.cluster.member.heartbeat import Heartbeat
from rl_agent.cluster.member.polling import PollingThread, Wait
from rl_agent.cluster.member.services import Services
from rl_agent.cluster.protocol import records, shared_config
from rl_agent.cluster.protocol.events import RecordChanged
from rl_agent.cluster.protocol.follower import Follower
from rl_agent.cluster.protocol.records import (
    MASTER_FILE,
    ClusterPaths,
    PhaseKey,
    RankRecord,
    RunEnd,
    View,
)
from rl_agent.cluster.protocol.state import MasterTerms
from rl_agent.cluster.protocol.stragglers import missing_ranks, stragglers
from rl_agent.cluster.shared_fs.folder import Stamp
from rl_agent.config.plan import Plan
from rl_agent.errors import HarnessError, RetryLater
from rl_agent.system.processes import ProcessId

_LEAST_PAUSE_S = 0.1
"""The shortest time between two heartbeats."""
_LEAVE_TIMEOUT_S = 5.0
_T = TypeVar("_T")


def print_line(line: str) -> None:
    """Log a line of the cluster to stderr."""
    sys.stderr.write(f"cluster: {line}\n")
    sys.stderr.flush()


class NodeProcess:
    """A context manager, thread-safe; `Member` adds what the phases ask for."""

    def __init__(self, plan: Plan, services: Services, *, is_joiner: bool, pid: int) -> None:
        self.plan = plan
        self.clock = services.clock
        self.incarnation = plan.incarnation
        self.is_master = plan.command.rank == 0 and not is_joiner
        self.coordinator: Coordinator | None = None
        self._settings = settings = plan.config.cluster
        self._paths = ClusterPaths(plan.run_id, plan.attempt)
        self._services = services
        self._is_joiner = is_joiner
        self._threads: list[PollingThread] = []
        self._failure: Exception | None = None
        self._has_ended = False
        self._queue: ChunkQueue | None = None
        self._stamp: Stamp | None = None
        self._last_change = self.clock()
        digest = shared_config.digest(plan.config)
        self._heartbeat = Heartbeat(
            services,
            self._paths.rank(self.incarnation),
            interval_s=settings.heartbeat_s,
            on_sent=self._on_heartbeat,
            chunks=lambda: self._queue.summary() if self._queue else None,
            incarnation=self.incarnation,
            process=ProcessId.of(pid),
            config_digest=digest,
            rank=None if is_joiner else plan.command.rank,
            is_joiner=is_joiner,
        )
        self._follower = Follower(self.incarnation, self._paths, lease_s=settings.lease_s, now=self.clock())
        if self.is_master:
            self._heartbeat.update(answers=self.incarnation, state="member")
            terms = MasterTerms(
                master=self.incarnation,
                num_nodes=plan.command.num_nodes,
                weights=plan.command.rank_weights,
                heartbeat_s=settings.heartbeat_s,
                lease_s=settings.lease_s,
                config_digest=digest,
            )
            self.coordinator = Coordinator(terms, self._paths, services, self.fail)

    # --- coming and going ---
    def start(self) -> None:
        """Start the threads, and wait until this node may begin."""
        self._heartbeat.send()
        self._threads = self.make_threads()
        for thread in self._threads:
            thread.start()
        is_ready = self._all_ranks_joined if self.is_master else self._is_admitted
        self._wait("the start", is_ready, self._awaited_at_start, timeout_s=self._settings.start_timeout_s)

    def end(self, status: int = 0, reason: str = "") -> None:
        """End the run for all if this is the master, else leave it and hand back the chunks; works once."""
        if self._has_ended:
            return
        self._has_ended = True
        reason = reason or ("done" if status == 0 else f"ended with status {status}")
        if self.coordinator is not None:
            self.coordinator.apply(RunEnd(status=status, reason=reason))
        self._heartbeat.update(state="left", reason=reason, doing="left")
        self._heartbeat.send()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.stop()
        # In a thread: a shared folder that hangs must not delay the exit.
        leaving = threading.Thread(target=self._leave, args=(error,), name="leave", daemon=True)
        leaving.start()
        leaving.join(_LEAVE_TIMEOUT_S)

    def _leave(self, error: BaseException | None) -> None:
        status = getattr(error, "exit_code", getattr(error, "code", 1)) if error is not None else 0
        reason = str(error) if isinstance(error, HarnessError) else ""
        try:
            self.end(status if isinstance(status, int) else 1, reason)
        except HarnessError as problem:
            self._services.log(f"the other nodes could not be told that this one leaves: {problem}")

    # --- membership ---
    @property
    def rank(self) -> int:
        """The rank of this node. Raises RetryLater for a joiner that was not admitted."""
        if not self._is_joiner:
            return self.plan.command.rank
        member = self.view.member(self.incarnation) if self.view else None
        if member is None:
            raise RetryLater("this node is not a member of the run")
        return member.rank

    @property
    def view(self) -> View | None:
        """The newest View that names this node."""
        return self.coordinator.view if self.coordinator else self._follower.view

    def check(self) -> None:
        """Raises the error that ended this membership.

        RetryLater if the master is lost, has ended the run with an error or has declared this node dead;
        StoreError if the shared folder fails.
        """
        if self._failure is not None:
            raise self._failure
        view = self.view
        if view is not None and view.ended is not None and view.ended.status != 0 and not self._has_ended:
            raise RetryLater(f"the master, rank 0 ({view.host}), aborted the run: {view.ended.reason}")

    def fail(self, error: Exception) -> None:
        """End this membership with an error; the first one counts."""
        if self._failure is None:
            self._failure = error
            self._services.log(str(error) or type(error).__name__)
        self.notify()

    # --- the threads ---
    def make_threads(self) -> list[PollingThread]:
        """Make the threads of the heartbeat and of polling the others, not started."""
        poll_others = self.coordinator.poll if self.coordinator else self.poll_view
        return [
            PollingThread(
                name,
                poll,
                fail=self.fail,
                log=self._services.log,
                clock=self.clock,
                retry_s=self._settings.lease_s / 2,
                least_pause_s=least_pause_s,
            )
            for name, poll, least_pause_s in (
                ("heartbeat", self._heartbeat.poll, _LEAST_PAUSE_S),
                ("cluster", poll_others, 0.0),
            )
        ]

    def poll_view(self) -> float:
        """Read the master's View as a worker; return the seconds until the next poll."""
        now = self.clock()
        stamp, content = self._services.folder.read_if_changed(MASTER_FILE, self._stamp)
        view = records.parse(View, content) if stamp != self._stamp else None
        self._stamp = stamp
        was_waiting = self._follower.view is None
        if self._follower.update(view, now):
            self._last_change = now
            if was_waiting:
                state = "member" if self._follower.view else "waiting"
                self._heartbeat.update(answers=self._follower.answers, state=state)
                self._heartbeat.send()
            self.notify()
        return pause_after(now - self._last_change)

    def _on_heartbeat(self, record: RankRecord) -> None:
        if self.coordinator is not None:
            self.coordinator.apply(RecordChanged(record))

    def report(self, *, now: bool) -> None:
        """Send a heartbeat about the chunks before this returns, or soon (where there are other nodes)."""
        if now:
            self._heartbeat.send()
        elif self._threads:
            self._threads[0].wake()

    def notify(self) -> None:
        """Wake every wait of this process."""
        self._services.notifier.notify()

    # --- waiting ---
    def _wait(
        self, what: str, is_ready: Callable[[], _T | None], who: Callable[[], str], *, timeout_s: float
    ) -> _T:
        """Return the first value of `is_ready` that is true; log now and then which nodes are awaited."""
        wait = self._new_wait(what, who, timeout_s)
        while True:
            count = self._services.notifier.count
            self.check()
            if value := is_ready():
                return value
            self._services.notifier.wait(count, wait.check())

    async def wait_async(self, what: str, is_ready: Callable[[], bool], who: Callable[[], str]) -> None:
        """Wait in an asyncio task until `is_ready`, at most as long as a phase may take."""
        wait = self._new_wait(what, who, self._settings.phase_timeout_s)
        while True:
            count = self._services.notifier.count
            self.check()
            if is_ready():
                return
            await self._services.notifier.wait_async(count, wait.check())

    def _new_wait(self, what: str, who: Callable[[], str], timeout_s: float) -> Wait:
        self._poll_often()
        return Wait(
            what,
            who,
            timeout_s=timeout_s,
            lease_s=self._settings.lease_s,
            threads=self._threads,
            log=self._services.log,
            clock=self.clock,
        )

    def _poll_often(self) -> None:
        """Poll at short intervals for a while, because something waits."""
        self._last_change = self.clock()
        for thread in self._threads[1:]:
            thread.wake()

    # --- conditions to wait for, and the nodes that they depend on ---
    def _is_admitted(self) -> bool:
        return self._follower.view is not None

    def _all_ranks_joined(self) -> bool:
        return self.coordinator is not None and not self.coordinator.state.missing_ranks

    def _awaited_at_start(self) -> str:
        if self.is_master:
            return missing_ranks(self.view)
        if self._follower.answers is None:
            return "the master (rank 0), which has not begun"
        return "the master (rank 0) to admit this node"

    def straggling(self, key: PhaseKey) -> str:
        """Describe the nodes that have not finished a phase, and what they are doing."""
        if self.view is None:
            return "the master (rank 0)"
        lines = stragglers(self.view, self.record_of, key)
        return "; ".join(lines) or f"the decision of rank 0 ({self.view.host})"

    def others_straggling(self, key: PhaseKey) -> str:
        """Describe the stragglers without this node; empty if the others have finished."""
        if self.view is None:
            return "the master (rank 0)"
        return "; ".join(stragglers(self.view, self.record_of, key, besides=self.incarnation))

    def record_of(self, incarnation: str) -> RankRecord | None:
        """Read the record of a node."""
        return records.parse(RankRecord, self._services.folder.read(self._paths.rank(incarnation)))
