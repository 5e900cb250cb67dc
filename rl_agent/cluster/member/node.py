"""One process in a run: what it says about itself, what it sees of the others, and how it waits.

Two daemon threads belong to it: the heartbeat, and a look at the others (at the workers' records if this is
the master, at the master's View otherwise). What goes wrong in them is said once, ends every wait, and comes
out of `check`. They end with the context manager; one that hangs in the file system cannot hold up the exit.
"""

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from rl_agent.cluster.member.coordinator import Coordinator, pause_after
from rl_agent.cluster.member.heartbeat import Driver, Heartbeat
from rl_agent.cluster.member.notifier import Bell
from rl_agent.cluster.member.turns import Clock, Say, Turns, Wait
from rl_agent.cluster.member.work import Work
from rl_agent.cluster.protocol import records, shared
from rl_agent.cluster.protocol.events import Seen
from rl_agent.cluster.protocol.follower import Follower
from rl_agent.cluster.protocol.records import MASTER_FILE, Ended, PhaseKey, Places, RankRecord, View
from rl_agent.cluster.protocol.state import Terms
from rl_agent.cluster.protocol.stragglers import missing_ranks, stragglers
from rl_agent.cluster.shared_fs.folder import Folder, Stamp
from rl_agent.cluster.shared_fs.processes import ProcessId
from rl_agent.config import Plan
from rl_agent.errors import HarnessError, RetryLater

_LEAST_PAUSE_S = 0.1
"""Between two beats."""
_FAREWELL_S = 5.0
_T = TypeVar("_T")


def print_line(line: str) -> None:
    sys.stderr.write(f"cluster: {line}\n")
    sys.stderr.flush()


def in_background(job: Callable[[], None]) -> None:
    threading.Thread(target=job, name="cluster job", daemon=True).start()


class Node:
    """A context manager; thread-safe. `Member` adds what the phases ask for."""

    def __init__(
        self,
        plan: Plan,
        *,
        folder: Folder,
        durable: Folder,
        is_joiner: bool,
        pid: int,
        driver: Driver,
        say: Say,
        clock: Clock,
        in_background: Callable[[Callable[[], None]], None],
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.incarnation = plan.incarnation
        self.is_master = plan.command.rank == 0 and not is_joiner
        self.coordinator: Coordinator | None = None
        self._settings = settings = plan.config.cluster
        self._places = Places(plan.run_id, plan.attempt)
        self._folder, self._durable = folder, durable
        self._is_joiner = is_joiner
        self._say = say
        self._bell = Bell()
        self._turns: list[Turns] = []
        self._failure: Exception | None = None
        self._has_ended = False
        self._work: Work | None = None
        self._stamp: Stamp | None = None
        self._last_change = clock()
        digest = shared.digest(plan.config)
        self._heartbeat = Heartbeat(
            folder,
            self._places.rank(self.incarnation),
            self.incarnation,
            ProcessId.of(pid),
            digest,
            None if is_joiner else plan.command.rank,
            is_joiner,
            settings.heartbeat_s,
            driver,
            on_beat=self._on_beat,
            work=lambda: self._work.summary() if self._work else None,
            clock=clock,
        )
        self._follower = Follower(self.incarnation, self._places, lease_s=settings.lease_s, now=clock())
        if self.is_master:
            self._heartbeat.update(answers=self.incarnation, state="member")
            self.coordinator = Coordinator(
                Terms(self.incarnation, plan.command.num_nodes, settings.lease_s, digest),
                self._places,
                folder=folder,
                durable=durable,
                weights=plan.command.rank_weights,
                heartbeat_s=settings.heartbeat_s,
                driver=driver,
                bell=self._bell,
                say=say,
                fail=self.fail,
                clock=clock,
                in_background=in_background,
            )

    # --- coming and going ---
    def start(self) -> None:
        """Start the threads, and wait until this node may begin."""
        self._heartbeat.beat()
        self._turns = self.make_turns()
        for turns in self._turns:
            turns.start()
        is_ready = self._all_are_here if self.is_master else self._is_admitted
        self._wait("the start", is_ready, self._whom_to_start, timeout_s=self._settings.start_timeout_s)

    def end(self, status: int = 0, reason: str = "") -> None:
        """The master ends the run for all, a worker leaves it: its chunks are handed back. Once is enough."""
        if self._has_ended:
            return
        self._has_ended = True
        reason = reason or ("done" if status == 0 else f"ended with status {status}")
        if self.coordinator is not None:
            self.coordinator.apply(Ended(status=status, reason=reason))
        self._heartbeat.update(state="left", reason=reason, doing="left")
        self._heartbeat.beat()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for turns in self._turns:
            turns.stop()
        farewell = threading.Thread(target=self._farewell, args=(error,), name="farewell", daemon=True)
        farewell.start()
        farewell.join(_FAREWELL_S)

    def _farewell(self, error: BaseException | None) -> None:
        status = getattr(error, "exit_code", getattr(error, "code", 1)) if error is not None else 0
        reason = str(error) if isinstance(error, HarnessError) else ""
        try:
            self.end(status if isinstance(status, int) else 1, reason)
        except HarnessError as problem:
            self._say(f"could not say good-bye: {problem}")

    # --- who it is, and whether it still is ---
    @property
    def rank(self) -> int:
        """Raises RetryLater for a joiner that was not admitted."""
        if not self._is_joiner:
            return self.plan.command.rank
        member = self.view.member(self.incarnation) if self.view else None
        if member is None:
            raise RetryLater("this node is not a member of the run")
        return member.rank

    @property
    def view(self) -> View | None:
        return self.coordinator.view if self.coordinator else self._follower.view

    def check(self) -> None:
        """Raises what ended this membership.

        RetryLater if the master is lost or broke the run off, or has given this node up; StoreError if the
        shared folder fails.
        """
        if self._failure is not None:
            raise self._failure
        view = self.view
        if view is not None and view.ended is not None and view.ended.status != 0 and not self._has_ended:
            raise RetryLater(f"the master, rank 0 ({view.host}), broke the run off: {view.ended.reason}")

    def fail(self, error: Exception) -> None:
        """Ends this membership; the first reason counts."""
        if self._failure is None:
            self._failure = error
            self._say(str(error) or type(error).__name__)
        self._bell.ring()

    # --- what the threads do ---
    def make_turns(self) -> list[Turns]:
        """The heartbeat and the look at the others, not started."""
        look = self.coordinator.turn if self.coordinator else self.look
        return [
            Turns(
                name,
                turn,
                fail=self.fail,
                say=self._say,
                clock=self.clock,
                patience_s=self._settings.lease_s / 2,
                least_pause_s=least_pause_s,
            )
            for name, turn, least_pause_s in (
                ("heartbeat", self._heartbeat.turn, _LEAST_PAUSE_S),
                ("cluster", look, 0.0),
            )
        ]

    def look(self) -> float:
        """A worker looks at the master's View; seconds until the next look."""
        now = self.clock()
        stamp, found = self._folder.look(MASTER_FILE, self._stamp)
        view = records.parse(View, found) if stamp != self._stamp else None
        self._stamp = stamp
        is_new_here = self._follower.view is None
        if self._follower.see(view, now):
            self._last_change = now
            if is_new_here:
                state = "member" if self._follower.view else "waiting"
                self._heartbeat.update(answers=self._follower.answers, state=state)
                self._heartbeat.beat()
            self._bell.ring()
        return pause_after(now - self._last_change)

    def _on_beat(self, record: RankRecord) -> None:
        if self.coordinator is not None:
            self.coordinator.apply(Seen(record))

    def tell(self, *, now: bool) -> None:
        """Let the others know of the chunks: before this returns, or soon (where there are others)."""
        if now:
            self._heartbeat.beat()
        elif self._turns:
            self._turns[0].poke()

    def ring(self) -> None:
        """Let whoever waits in this process look again."""
        self._bell.ring()

    # --- waiting ---
    def _wait(
        self, what: str, is_ready: Callable[[], _T | None], who: Callable[[], str], *, timeout_s: float
    ) -> _T:
        """The first value that is neither None nor False; says from time to time for whom."""
        wait = self._new_wait(what, who, timeout_s)
        self._hurry()
        while True:
            count = self._bell.count
            self.check()
            if found := is_ready():
                return found
            self._bell.wait(count, wait.look())

    async def wait_async(self, what: str, is_ready: Callable[[], bool], who: Callable[[], str]) -> None:
        """The same for a job; the deadline is that of a phase."""
        wait = self._new_wait(what, who, self._settings.phase_timeout_s)
        self._hurry()
        while True:
            count = self._bell.count
            self.check()
            if is_ready():
                return
            await self._bell.wait_async(count, wait.look())

    def _new_wait(self, what: str, who: Callable[[], str], timeout_s: float) -> Wait:
        return Wait(
            what,
            who,
            timeout_s=timeout_s,
            lease_s=self._settings.lease_s,
            turns=self._turns,
            say=self._say,
            clock=self.clock,
        )

    def _hurry(self) -> None:
        """Somebody waits: look more often for a while."""
        self._last_change = self.clock()
        for turns in self._turns[1:]:
            turns.poke()

    # --- for what ---
    def _is_admitted(self) -> bool:
        return self._follower.view is not None

    def _all_are_here(self) -> bool:
        return self.coordinator is not None and not self.coordinator.state.missing_ranks

    def _whom_to_start(self) -> str:
        if self.is_master:
            return missing_ranks(self.view)
        if self._follower.answers is None:
            return "the master (rank 0), which has not begun"
        return "the master (rank 0) to admit this node"

    def straggling(self, key: PhaseKey) -> str:
        """Who has not finished a phase, and what they are at."""
        if self.view is None:
            return "the master (rank 0)"
        found = stragglers(self.view, self.record_of, key)
        return "; ".join(found) or f"the decision of rank 0 ({self.view.host})"

    def others_straggling(self, key: PhaseKey) -> str:
        """The same without this node; empty if the others are through."""
        if self.view is None:
            return "the master (rank 0)"
        return "; ".join(stragglers(self.view, self.record_of, key, besides=self.incarnation))

    def record_of(self, incarnation: str) -> RankRecord | None:
        return records.parse(RankRecord, self._folder.read(self._places.rank(incarnation)))
