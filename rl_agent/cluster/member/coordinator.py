"""The master's side: reads what the nodes say, decides with `protocol.step`, publishes what it decided.

    ranks/*.json, claims ─► events ─► step ─► commands ─► decision.json, chunks-n.json ─► master.json

What the master itself asks for is decided in the caller's thread, at once; a thread looks at the folder. What
a decision rests on is written before it is published, so that nobody acts on what a crash could take back.
"""

import threading
from collections.abc import Callable

from rl_agent.cluster.member.heartbeat import Driver
from rl_agent.cluster.member.notifier import Bell
from rl_agent.cluster.member.turns import Clock, Say
from rl_agent.cluster.protocol import records
from rl_agent.cluster.protocol.events import (
    Claimed,
    Command,
    Event,
    Looked,
    ReadShard,
    Salvaged,
    Seen,
    WriteBatch,
    WriteDecision,
)
from rl_agent.cluster.protocol.ledger import Ledger, Salvage
from rl_agent.cluster.protocol.protocol import step
from rl_agent.cluster.protocol.records import MASTER_FILE, Claim, PhaseKey, Places, RankRecord, View
from rl_agent.cluster.protocol.state import ClusterState, Terms
from rl_agent.cluster.protocol.view import view_of
from rl_agent.cluster.shared_fs.folder import Folder, Stamp
from rl_agent.errors import RetryLater

FASTEST_S, SLOWEST_S = 0.02, 0.2
"""Pauses between two looks: a tenth of the time since the last change, between these."""
LISTING_S = 1.0
"""Seconds between two listings of a folder, for new nodes and claims."""

OnLost = Callable[[str], tuple[int, set[int]]]


def pause_after(quiet_s: float) -> float:
    """Changes come in bursts: look often after one, and seldom later."""
    return min(max(quiet_s / 10, FASTEST_S), SLOWEST_S)


class Coordinator:
    """Thread-safe. `durable` is where decisions go; it is `folder`, except for a member that is alone."""

    def __init__(
        self,
        terms: Terms,
        places: Places,
        *,
        folder: Folder,
        durable: Folder,
        weights: tuple[int, ...],
        heartbeat_s: float,
        driver: Driver,
        bell: Bell,
        say: Say,
        fail: Callable[[Exception], None],
        clock: Clock,
        in_background: Callable[[Callable[[], None]], None],
    ) -> None:
        self.state = ClusterState(terms, clock())
        self.view: View | None = None
        self.on_lost: dict[PhaseKey, OnLost] = {}
        """Reads the file of a node that is gone; what is to be read waits until the phase has one."""
        self._places = places
        self._folder = folder
        self._durable = durable
        self._weights = weights
        self._heartbeat_s = heartbeat_s
        self._driver = driver
        self._bell = bell
        self._say = say
        self._fail = fail
        self._clock = clock
        self._in_background = in_background
        self._lock = threading.RLock()
        self._stamps: dict[str, Stamp | None] = {}
        """Of the records that are looked at."""
        self._next_listing = self._next_beat = self._next_check = self._last_change = clock()
        self._is_sole = True
        self._unreadable: dict[str, float] = {}
        self._to_read: list[ReadShard] = []
        found = records.parse(View, folder.read(MASTER_FILE))
        self._term = 1 + (found.term if found else 0)

    # --- what the master asks for, and what the folder says ---
    def apply(self, event: Event) -> None:
        """Decide and publish. Raises StoreError if that cannot be written, ValueError like `step`."""
        with self._lock:
            before = self.state
            state, commands = step(before, event, self._clock())
            for command in commands:
                self._carry_out(command)
            self.state = state
            if self.view is None or commands or not isinstance(event, Looked):
                self._publish()
            is_news = state.ledger is not before.ledger or state.decisions is not before.decisions
        if is_news:
            self._last_change = self._clock()
            self._bell.ring()
        self._start_reading()

    def _carry_out(self, command: Command) -> None:
        match command:
            case WriteDecision(key, decision):
                record = {**decision.to_record(), "master": self.state.terms.master}
                self._durable.write_whole(self._places.decision(key), record)
            case WriteBatch(key, number, batch):
                name = self._places.batch(key, self.state.terms.master, number)
                self._folder.write_whole(name, batch.to_record())
            case ReadShard():
                self._to_read.append(command)
            case _:
                self._say(command.line)

    # --- the thread ---
    def turn(self) -> float:
        """Look at the folder once; seconds until the next look."""
        if self._driver.is_stopped():
            return SLOWEST_S
        now = self._clock()
        is_listing = now >= self._next_listing
        if is_listing:
            is_starting = self.state.order is None and self.state.missing_ranks
            self._next_listing = now + (0.0 if is_starting else LISTING_S)
            for name in self._folder.names(self._places.ranks):
                self._stamps.setdefault(name.removesuffix(".json"), None)
        for record in self._changed_records():
            self.apply(Seen(record))
        if is_listing:
            self._look_for_claims(now)
        self.apply(Looked())
        self._beat(now)
        self._start_reading()
        others = len(self.state.peers) > 1 or self.state.terms.num_nodes > 1
        return pause_after(now - self._last_change) if others else min(LISTING_S, self._heartbeat_s)

    def _changed_records(self) -> list[RankRecord]:
        changed = []
        for incarnation, stamp in list(self._stamps.items()):
            peer = self.state.peers.get(incarnation)
            is_settled = incarnation == self.state.terms.master or incarnation in self.state.refused
            if is_settled or (peer is not None and not peer.is_alive):
                continue
            new_stamp, found = self._folder.look(self._places.rank(incarnation), stamp)
            if new_stamp != stamp:
                self._stamps[incarnation] = new_stamp
                if record := records.parse(RankRecord, found):
                    changed.append(record)
        return changed

    def _look_for_claims(self, now: float) -> None:
        """Nodes report what they have claimed; this finds what one that is gone could not report."""
        ledger = self.state.ledger
        if ledger is None or ledger.is_closed or all(peer.is_alive for peer in self.state.peers.values()):
            return
        unknown = {chunk for chunk, entry in ledger.chunks.items() if entry.owner is None}
        folder = self._places.claims(ledger.key, self.state.terms.master)
        for name in self._folder.names(folder) if unknown else ():
            if not name.isdigit() or int(name) not in unknown:
                continue
            chunk, path = int(name), f"{folder}/{name}"
            claim = records.parse(Claim, self._folder.read(path))
            if claim is not None:
                self.apply(Claimed(ledger.key, chunk, claim.incarnation, claim.rank))
            elif now - self._unreadable.setdefault(path, now) > self.state.terms.lease_s:
                # Without hard links a claim is written after it was made, and its node died in between.
                self.apply(Claimed(ledger.key, chunk, f"nobody-{chunk}", 0))

    def _beat(self, now: float) -> None:
        if now >= self._next_beat:
            with self._lock:
                self._publish(is_beat=True)
            self._next_beat = now + self._heartbeat_s

    def _check_sole(self) -> None:
        """Of two masters in one log path the later one goes on. A process that was stopped finds it here."""
        now = self._clock()
        if self._is_sole and now < self._next_check:
            return
        self._next_check = now + self._heartbeat_s
        found = records.parse(View, self._folder.read(MASTER_FILE))
        mine = self.state.terms.master
        if found is not None and found.master != mine and (found.term, found.master) > (self._term, mine):
            self._is_sole = False
            raise RetryLater(
                f"a new master, rank 0 ({found.host}), has taken over this log path; this one stops"
            )

    def _publish(self, *, is_beat: bool = False) -> None:
        view = view_of(
            self.state,
            self._places,
            weights=self._weights,
            heartbeat_s=self._heartbeat_s,
            term=self._term,
            number=self.view.number if self.view else 0,
            beat=self.view.beat if self.view else 0,
        )
        is_change = view != self.view
        if not is_change and not is_beat:
            return
        self._check_sole()
        view = view.model_copy(update={"number": view.number + is_change, "beat": view.beat + 1})
        self._folder.write_whole(MASTER_FILE, view.to_record(), is_durable=False)
        self.view = view
        if is_change:
            self._last_change = self._clock()
            self._bell.ring()

    # --- files of nodes that are gone ---
    def _start_reading(self) -> None:
        if any(command.key in self.on_lost for command in self._to_read):
            self._in_background(self._read_and_tell)

    def _read_and_tell(self) -> None:
        try:
            self._read_shards()
        except Exception as error:
            self._fail(error)

    def _read_shards(self) -> None:
        """Read what is left of nodes that are gone, where the phase has told how."""
        with self._lock:
            commands = [command for command in self._to_read if command.key in self.on_lost]
            self._to_read = [command for command in self._to_read if command not in commands]
        for command in commands:
            cut_bytes, recorded = self.on_lost[command.key](command.shard)
            salvage = Salvage(cut_bytes, frozenset(recorded))
            self.apply(Salvaged(command.key, command.incarnation, salvage))

    def ledger(self, key: PhaseKey) -> Ledger | None:
        ledger = self.state.ledger
        return ledger if ledger is not None and ledger.key == key else None
