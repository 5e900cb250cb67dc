"""Fetches one blob from several sources at once, each over several connections, piece by piece.

    nobody's ─► claimed by one worker ─► read ─► digest agrees ─► written: verified, others may have it
        ▲                                   │ differs, cut off, too slow
        └───────────────────────────────────┘

A source that fails is tried again a few times, with pauses; one that gives wrong bytes too often is asked no
more; a piece that a slow one is at is fetched beside it (`board`). The fetch ends when all pieces are
verified, when no source is left, at the deadline, or when it is cancelled; it always ends, whatever a
source does, and what was verified so far stays verified.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.download.piece_board import PieceBoard, PieceClaim
from rl_agent.weights.format.checksums import digest
from rl_agent.weights.format.manifest import Blob
from rl_agent.weights.format.pieces import Bits, PieceSet
from rl_agent.weights.sources.source import (
    GRACE_S,
    STOP_POLL_S,
    GuardedConnection,
    Source,
    SourceFailure,
    stuck,
)

_log = logging.getLogger(__name__)
_REPORTED_FAILURES = 20
RETRY_PAUSE_S = 0.2
"""The pause after a failure of a source, times the failures in a row: a server that restarts needs about a
second, which the default of five retries outlasts."""
MAX_WRONG_PIECES = 8
"""A few pieces with wrong bytes are a bad cable's; a source that gives more is asked no more."""


@dataclass
class SourceReport:
    """The pieces that a source gave, and its failures."""

    pieces: int = 0
    size_bytes: int = 0
    wrong_pieces: int = 0
    is_reached: bool = False
    is_stuck: bool = False
    """A thread of it does not end."""
    failures: deque[str] = field(default_factory=lambda: deque(maxlen=_REPORTED_FAILURES))


@dataclass(frozen=True, slots=True)
class BlobWanted:
    """A blob to fetch, and where its bytes go."""

    weight_version: int
    name: str
    blob: Blob
    write: Callable[[int, memoryview], None]
    """Takes verified bytes and where they start; called by several threads."""
    place: Callable[[int, int], memoryview | None]
    """Returns where bytes from start to end may be received right away, before they are verified; None:
    nowhere."""
    wrong_pieces: Counter[str] = field(default_factory=Counter)
    """The number of pieces with wrong bytes, by source."""


@dataclass
class BlobFetch:
    """The fetch of one blob's missing pieces, with one worker for each connection."""

    wanted: BlobWanted
    pieces: PieceSet
    """The pieces that are there; the others are fetched."""
    settings: WeightsConfig
    deadline: Deadline
    stop: threading.Event
    reports: dict[str, SourceReport]
    """The reports by source; the sources go on with what is in them."""

    def __post_init__(self) -> None:
        self.board = PieceBoard(self.pieces)
        self.aborted = threading.Event()

    def run(self, sources: Sequence[Source]) -> None:
        """Fetch all missing pieces, and give each to `wanted.write` once verified.

        Raises WeightsError that names each source and what it did if the blob cannot be completed, and
        whatever `wanted.write` raises.
        """
        board = self.board
        workers = [_Worker(self, each) for each in sources for _ in range(self.settings.streams_per_source)]
        try:
            for worker in workers:
                worker.start()

            def is_over() -> bool:
                has_no_worker = self.aborted.is_set() or all(worker.has_ended for worker in workers)
                return board.is_finished or self.stop.is_set() or self.deadline.is_over or has_no_worker

            while not is_over():
                board.wait_until(is_over, STOP_POLL_S)
        finally:
            self.aborted.set()
            board.close()
            _end(workers)
        crashed = next((worker.crash for worker in workers if worker.crash), None)
        if crashed:
            raise crashed
        if not board.is_finished:
            raise WeightsError(_why(self))


def _end(workers: "Sequence[_Worker]") -> None:
    """Interrupt the workers. What does not end is left behind: it has nowhere to write to any more."""
    grace = Deadline.after(GRACE_S)
    while any(worker.is_alive() for worker in workers) and not grace.is_over:
        for worker in workers:  # one that was about to connect again is met by the next round
            worker.interrupt()
        for worker in workers:
            if worker.is_alive():
                worker.join(STOP_POLL_S / len(workers))
    for worker in workers:
        if worker.is_alive():
            worker.report_stuck()


def _why(fetch: BlobFetch) -> str:
    left, wanted = int(fetch.pieces.missing().sum()), fetch.wanted
    missing = f"{left} of {fetch.pieces.count} pieces of {wanted.name} are missing"
    what = f"version {wanted.weight_version}: {missing}"
    if fetch.stop.is_set():
        return f"{what}: cancelled"
    if fetch.deadline.is_over:
        what += " at the deadline"
    reasons = "; ".join(
        f"{name}: {report.failures[-1] if report.failures else f'gave {report.pieces} pieces'}"
        for name, report in fetch.reports.items()
    )
    return f"{what}: {reasons or 'there is no source'}"


class _Worker(threading.Thread):
    """One connection to one source, made again when it breaks."""

    def __init__(self, fetch: BlobFetch, source: Source) -> None:
        super().__init__(name=f"fetch-{source}", daemon=True)
        self.has_ended = False
        self.crash: BaseException | None = None
        """An error that no source is to blame for."""
        self._wanted, self._settings, self._deadline = fetch.wanted, fetch.settings, fetch.deadline
        self._board, self._aborted = fetch.board, fetch.aborted
        self._source = source
        self._report = fetch.reports.setdefault(str(source), SourceReport())
        self._failures = 0
        self._connection: GuardedConnection | None = None
        self._buffer: memoryview | None = None

    def run(self) -> None:
        try:
            while not self._is_over() and self._failures <= self._settings.retries:
                self._visit()
        except BaseException as error:
            self.crash = error
            self._aborted.set()
        finally:
            self.has_ended = True
            self._board.wake()

    def interrupt(self) -> None:
        """End what the worker waits for; it then sees that all is over."""
        if self._connection is not None:
            self._connection.interrupt()

    def report_stuck(self) -> None:
        failure = stuck()
        self._report.is_stuck = True
        self._report.failures.append(str(failure))
        _log.warning("%s: %s", self._source, failure)

    def _is_over(self) -> bool:
        is_banned = self._wanted.wrong_pieces[str(self._source)] > MAX_WRONG_PIECES
        return self._board.is_finished or self._aborted.is_set() or self._deadline.is_over or is_banned

    def _piece_deadline(self) -> Deadline:
        return self._deadline.sooner(self._settings.piece_timeout_s)

    def _visit(self) -> None:
        """Use one connection to its end, which is a failure of its source unless it was ended from here."""
        claim = PieceClaim(str(self._source), self.interrupt)
        try:
            self._connection = GuardedConnection(self._source)
            self._use(self._connection, claim)
        except SourceFailure as failure:
            if self._aborted.is_set():
                return
            if claim.was_cut:
                self._report.failures.append("a piece came sooner from another source")
                return
            self._failures += 1
            self._report.failures.append(str(failure))
            if self._failures <= self._settings.retries:
                self._aborted.wait(RETRY_PAUSE_S * self._failures)

    def _use(self, connection: GuardedConnection, claim: PieceClaim) -> None:
        try:
            self._open(connection)
            while not self._is_over():
                pieces = self._board.open_to(claim.source)
                if pieces.any():
                    self._take(connection, claim, pieces)
                else:
                    self._board.wait_until(
                        lambda: self._aborted.is_set() or self._board.is_finished or self._board.has_work,
                        STOP_POLL_S,
                    )
        finally:
            self._board.give_back(claim)
            connection.close()

    def _open(self, connection: GuardedConnection) -> None:
        try:
            connection.open(self._piece_deadline())
        except SourceFailure as failure:
            self._report.is_reached |= not failure.is_out_of_reach
            raise
        self._report.is_reached = True

    def _take(self, connection: GuardedConnection, claim: PieceClaim, pieces: Bits) -> None:
        deadline = Deadline.after(STOP_POLL_S)
        proposed = connection.recommend(
            self._wanted.weight_version,
            self._wanted.name,
            pieces,
            self._settings.pieces_at_once,
            STOP_POLL_S,
            self._piece_deadline(),
        )
        if not proposed and not deadline.is_over:  # it was to wait for one to come, and did not
            self._aborted.wait(deadline.remaining_s())
        self._board.claim(claim, proposed)
        while not self._is_over() and (index := self._board.next(claim)) is not None:
            self._read(connection, claim, index)
            self._failures = 0
        self._board.give_back(claim)

    def _read(self, connection: GuardedConnection, claim: PieceClaim, index: int) -> None:
        wanted = self._wanted
        start, end = wanted.blob.range_of(index)
        place = wanted.place(start, end) if connection.is_cut_at_once else None
        is_in_place = place is not None and self._board.take_place(claim, index)
        target = place if place is not None and is_in_place else self._own_buffer()[: end - start]
        connection.read_piece(
            wanted.weight_version, wanted.name, index, start, target, self._piece_deadline()
        )
        if digest(target) != wanted.blob.digests[index]:
            self._report.wrong_pieces += 1
            wanted.wrong_pieces[str(self._source)] += 1
            raise SourceFailure(f"piece {index} does not match its digest")
        if is_in_place:
            self._board.done(claim, index)
        else:
            with self._board.writing(claim, index) as is_needed:
                if not is_needed:
                    return
                wanted.write(start, target)
                self._board.done(claim, index)
        self._report.pieces += 1
        self._report.size_bytes += end - start

    def _own_buffer(self) -> memoryview:
        if self._buffer is None:  # read and verified here, while the processor's cache has it
            self._buffer = memoryview(bytearray(self._wanted.blob.longest_piece))
        return self._buffer
