"""The master's part of a node: reads the nodes' records, decides with `protocol.step`, publishes the View.

    ranks/*.json, claims ─► events ─► step ─► commands ─► decision.json, chunks-n.json ─► master.json

What the master itself asks for is decided at once, in the caller's thread; another thread polls the folder.
What a decision rests on is written before it is published, so that no node acts on what a crash could undo.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

from rl_agent.cluster.member.services import Services
from rl_agent.cluster.protocol import records
from rl_agent.cluster.protocol.events import (
    ClaimFound,
    Command,
    Event,
    Polled,
    ReadShard,
    RecordChanged,
    ShardRead,
    WriteBatch,
    WriteDecision,
)
from rl_agent.cluster.protocol.ledger import ChunkLedger, Salvage
from rl_agent.cluster.protocol.protocol import step
from rl_agent.cluster.protocol.records import (
    MASTER_FILE,
    ChunkClaim,
    ClusterPaths,
    PhaseKey,
    RankRecord,
    View,
)
from rl_agent.cluster.protocol.state import ClusterState, MasterTerms
from rl_agent.cluster.protocol.view import view_of
from rl_agent.cluster.shared_fs.folder import Stamp
from rl_agent.errors import RetryLater

FASTEST_S, SLOWEST_S = 0.02, 0.2
"""Pauses between two polls: a tenth of the time since the last change, between these."""
LISTING_S = 1.0
"""Seconds between two listings of a folder, for new nodes and claims."""

ReadLostShard = Callable[[str], tuple[int, set[int]]]
"""Takes the name of a lost node's file; returns the bytes that count, and the episodes in them."""


def pause_after(quiet_s: float) -> float:
    """Return the pause before the next poll: short after a change, because changes come in bursts."""
    return min(max(quiet_s / 10, FASTEST_S), SLOWEST_S)


class Coordinator:
    """The state of the run at its master. Thread-safe."""

    def __init__(
        self, terms: MasterTerms, paths: ClusterPaths, services: Services, fail: Callable[[Exception], None]
    ) -> None:
        clock, folder = services.clock, services.folder
        earlier_view = records.parse(View, folder.read(MASTER_FILE))
        terms = replace(terms, term=1 + (earlier_view.term if earlier_view else 0))
        self.state = ClusterState(terms, clock())
        self.view: View | None = None
        self.on_lost: dict[PhaseKey, ReadLostShard] = {}
        """Functions that read the file of a lost node; until a phase has one, its files wait."""
        self._paths = paths
        self._services = services
        self._fail = fail
        self._clock = clock
        self._folder = folder
        self._lock = threading.RLock()
        self._stamps: dict[str, Stamp | None] = {}
        """Version of each polled record, by incarnation."""
        self._next_listing = self._next_beat = self._next_check = self._last_change = clock()
        self._is_sole = True
        self._unreadable: dict[str, float] = {}
        self._to_read: list[ReadShard] = []

    # --- what the master asks for, and what the folder says ---
    def apply(self, event: Event) -> None:
        """Decide and publish. Raises StoreError if that cannot be written, ValueError like `step`."""
        with self._lock:
            before = self.state
            state, commands = step(before, event, self._clock())
            for command in commands:
                self._execute(command)
            self.state = state
            if self.view is None or commands or not isinstance(event, Polled):
                self._publish()
            is_news = state.ledger is not before.ledger or state.decisions is not before.decisions
        if is_news:
            self._last_change = self._clock()
            self._services.notifier.notify()
        self._start_reading()

    def _execute(self, command: Command) -> None:
        match command:
            case WriteDecision(key, decision):
                record = {**decision.to_record(), "master": self.state.terms.master}
                self._services.durable.write_whole(self._paths.decision(key), record)
            case WriteBatch(key, number, batch):
                name = self._paths.batch(key, self.state.terms.master, number)
                self._folder.write_whole(name, batch.to_record())
            case ReadShard():
                self._to_read.append(command)
            case _:
                self._services.log(command.line)

    # --- the thread ---
    def poll(self) -> float:
        """Read the folder once; return the seconds until the next poll."""
        if self._services.driver.is_stopped():
            return SLOWEST_S
        now = self._clock()
        is_listing = now >= self._next_listing
        if is_listing:
            is_starting = self.state.order is None and self.state.missing_ranks
            self._next_listing = now + (0.0 if is_starting else LISTING_S)
            for name in self._folder.names(self._paths.ranks):
                self._stamps.setdefault(name.removesuffix(".json"), None)
        for record in self._changed_records():
            self.apply(RecordChanged(record))
        if is_listing:
            self._find_claims(now)
        self.apply(Polled())
        if now >= self._next_beat:
            with self._lock:
                self._publish(is_beat=True)
            self._next_beat = now + self.state.terms.heartbeat_s
        self._start_reading()
        others = len(self.state.peers) > 1 or self.state.terms.num_nodes > 1
        return (
            pause_after(now - self._last_change) if others else min(LISTING_S, self.state.terms.heartbeat_s)
        )

    def _changed_records(self) -> list[RankRecord]:
        changed = []
        for incarnation, stamp in list(self._stamps.items()):
            peer = self.state.peers.get(incarnation)
            is_settled = incarnation == self.state.terms.master or incarnation in self.state.refused
            if is_settled or (peer is not None and not peer.is_alive):
                continue
            new_stamp, content = self._folder.read_if_changed(self._paths.rank(incarnation), stamp)
            if new_stamp != stamp:
                self._stamps[incarnation] = new_stamp
                if record := records.parse(RankRecord, content):
                    changed.append(record)
        return changed

    def _find_claims(self, now: float) -> None:
        """Find claims that a lost node could not report; nodes that are alive report theirs."""
        ledger = self.state.ledger
        if ledger is None or ledger.is_closed or all(peer.is_alive for peer in self.state.peers.values()):
            return
        unknown = {chunk for chunk, state in ledger.chunks.items() if state.owner is None}
        folder = self._paths.claims(ledger.key, self.state.terms.master)
        for name in self._folder.names(folder) if unknown else ():
            if not name.isdigit() or int(name) not in unknown:
                continue
            chunk, path = int(name), f"{folder}/{name}"
            claim = records.parse(ChunkClaim, self._folder.read(path))
            if claim is not None:
                self.apply(ClaimFound(ledger.key, chunk, claim.incarnation, claim.rank))
            elif now - self._unreadable.setdefault(path, now) > self.state.terms.lease_s:
                # Without hard links a claim is created and then written, and its node died in between.
                self.apply(ClaimFound(ledger.key, chunk, f"nobody-{chunk}", 0))

    def _check_is_only_master(self) -> None:
        """Raises RetryLater if a later master uses this log path, as one finds that was stopped meanwhile."""
        now, terms = self._clock(), self.state.terms
        if self._is_sole and now < self._next_check:
            return
        self._next_check = now + terms.heartbeat_s
        view = records.parse(View, self._folder.read(MASTER_FILE))
        is_other = view is not None and view.master != terms.master
        if view is not None and is_other and (view.term, view.master) > (terms.term, terms.master):
            self._is_sole = False
            raise RetryLater(
                f"a new master, rank 0 ({view.host}), has taken over this log path; this one stops"
            )

    def _publish(self, *, is_beat: bool = False) -> None:
        view = view_of(self.state, self._paths, self.view)
        is_change = view != self.view
        if not is_change and not is_beat:
            return
        self._check_is_only_master()
        view = view.model_copy(update={"number": view.number + is_change, "beat": view.beat + 1})
        self._folder.write_whole(MASTER_FILE, view.to_record(), is_durable=False)
        self.view = view
        if is_change:
            self._last_change = self._clock()
            self._services.notifier.notify()

    # --- files of lost nodes ---
    def _start_reading(self) -> None:
        if any(command.key in self.on_lost for command in self._to_read):
            self._services.in_background(self._read_shards)

    def _read_shards(self) -> None:
        """Read the files of lost nodes, in phases that have set how; what goes wrong ends the membership."""
        with self._lock:
            commands = [command for command in self._to_read if command.key in self.on_lost]
            self._to_read = [command for command in self._to_read if command not in commands]
        try:
            for command in commands:
                cut_bytes, recorded = self.on_lost[command.key](command.shard)
                salvage = Salvage(cut_bytes, frozenset(recorded))
                self.apply(ShardRead(command.key, command.incarnation, salvage))
        except Exception as error:
            self._fail(error)

    def ledger(self, key: PhaseKey) -> ChunkLedger | None:
        """Return the chunks of a phase, if it is the phase that is collected now."""
        ledger = self.state.ledger
        return ledger if ledger is not None and ledger.key == key else None
