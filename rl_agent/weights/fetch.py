"""Fetch one blob from several sources at once, each over several connections, piece by piece.

    unclaimed ─► claimed by one worker ─► read ─► digest agrees ─► written: verified, others may have it
        ▲                                   │ differs, cut off, too slow
        └───────────────────────────────────┘

A source that fails is tried again a few times, with pauses; one that gives wrong bytes too often is asked no
more. The fetch ends when all pieces are verified, when no source is left, at the deadline, or when it is told
to stop; it always ends, and what was verified so far stays verified.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rl_agent.errors import WeightsError
from rl_agent.weights.checksums import digest
from rl_agent.weights.deadline import Deadline
from rl_agent.weights.manifest import Blob, Manifest
from rl_agent.weights.pieces import Bits, PieceBoard, PieceSet

_REPORTED_FAILURES = 20


class Connection(Protocol):
    def open(self, deadline: Deadline) -> None: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...

    def manifest(self, weight_version: int, digest: str | None, deadline: Deadline) -> Manifest: ...

    def recommend(
        self, weight_version: int, blob: str, wanted: Bits, limit: int, wait_s: float, deadline: Deadline
    ) -> list[int]: ...

    def read_piece(
        self, weight_version: int, blob: str, index: int, start: int, target: memoryview, deadline: Deadline
    ) -> None: ...


class Source(Protocol):
    """Where pieces can be had; `str` of it names it in messages."""

    def connection(self) -> Connection: ...


def is_out_of_reach(error: Exception) -> bool:
    """Of an error of `Connection.open`: whether nobody has answered there, be it to say no."""
    return isinstance(error, OSError) and not isinstance(error, ConnectionResetError)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    streams_per_source: int
    pieces_at_once: int
    """Pieces that a connection asks for at a time."""
    piece_timeout_s: float
    """A piece that takes longer is fetched again, from another source if there is one."""
    retries: int
    """Failures in a row after which a connection to a source is given up."""
    retry_pause_s: float
    max_wrong_pieces: int
    """Pieces with wrong bytes of one blob after which a source is asked no more for it."""
    stop_poll_s: float
    """How soon a fetch that waits notices that it is to stop."""


@dataclass
class SourceReport:
    pieces: int = 0
    size_bytes: int = 0
    wrong_pieces: int = 0
    is_reached: bool = False
    failures: deque[str] = field(default_factory=lambda: deque(maxlen=_REPORTED_FAILURES))


@dataclass(frozen=True, slots=True)
class BlobWanted:
    weight_version: int
    name: str
    blob: Blob
    write: Callable[[int, memoryview], None]
    """Takes verified bytes and where they start; called by several threads."""
    place: Callable[[int, int], memoryview | None]
    """Where bytes from start to end may be received right away, before they are verified; None: nowhere."""
    wrong_pieces: Counter[str] = field(default_factory=Counter)
    """By source: how many had wrong bytes."""


def fetch_blob(
    wanted: BlobWanted,
    pieces: PieceSet,
    sources: Sequence[Source],
    settings: FetchSettings,
    deadline: Deadline,
    stop: threading.Event,
    reports: dict[str, SourceReport],
) -> None:
    """Give `wanted.write` every piece, verified, those of `pieces` excepted, which are there.

    `reports`, by source, go on with what is in them. Raises WeightsError that names each source and what it
    did if the blob cannot be completed.
    """
    board = PieceBoard(pieces)
    aborted = threading.Event()
    workers = [
        _Worker(
            wanted,
            board,
            source,
            reports.setdefault(str(source), SourceReport()),
            settings,
            deadline,
            aborted,
        )
        for source in sources
        for _ in range(settings.streams_per_source)
    ]
    threads = [threading.Thread(target=worker.run, name=f"fetch-{worker.source}") for worker in workers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        board.wait_until(lambda: board.is_finished or stop.is_set(), settings.stop_poll_s)
        if board.is_finished or stop.is_set() or deadline.is_over or aborted.is_set():
            aborted.set()
            for worker in workers:  # one that was about to connect again is met by the next round
                worker.interrupt()
            for thread in threads:
                thread.join(settings.stop_poll_s)
    crashed = next((worker.crash for worker in workers if worker.crash), None)
    if crashed:
        raise crashed
    if not board.is_finished:
        raise WeightsError(_why(wanted, pieces, reports, deadline, stop))


def _why(
    wanted: BlobWanted,
    pieces: PieceSet,
    reports: dict[str, SourceReport],
    deadline: Deadline,
    stop: threading.Event,
) -> str:
    left = int(pieces.missing().sum())
    what = f"version {wanted.weight_version}: {left} of {pieces.count} pieces of {wanted.name} are missing"
    if stop.is_set():
        return f"{what}: told to stop"
    if deadline.is_over:
        what += " at the deadline"
    reasons = "; ".join(
        f"{name}: {report.failures[-1] if report.failures else f'gave {report.pieces} pieces'}"
        for name, report in reports.items()
    )
    return f"{what}: {reasons or 'there is no source'}"


class _Worker:
    """One connection to one source, made again when it breaks."""

    def __init__(
        self,
        wanted: BlobWanted,
        board: PieceBoard,
        source: Source,
        report: SourceReport,
        settings: FetchSettings,
        deadline: Deadline,
        aborted: threading.Event,
    ) -> None:
        self.source = source
        self.crash: BaseException | None = None
        self._wanted = wanted
        self._board = board
        self._report = report
        self._settings = settings
        self._deadline = deadline
        self._aborted = aborted
        self._failures = 0
        self._connection: Connection | None = None
        self._buffer: memoryview | None = None

    def run(self) -> None:
        try:
            while not self._is_over():
                try:
                    self._connection = self.source.connection()
                    self._use(self._connection)
                except (OSError, WeightsError) as error:
                    if self._aborted.is_set():
                        return
                    self._failures += 1
                    self._report.failures.append(str(error) or type(error).__name__)
                    if self._failures > self._settings.retries:
                        return
                    self._aborted.wait(self._settings.retry_pause_s * self._failures)
        except BaseException as error:
            self.crash = error
            self._aborted.set()
        finally:
            self._board.wake()

    def interrupt(self) -> None:
        """End what the worker waits for; it then sees that all is over."""
        if self._connection is not None:
            self._connection.interrupt()

    def _is_over(self) -> bool:
        is_banned = self._wanted.wrong_pieces[str(self.source)] > self._settings.max_wrong_pieces
        return self._board.is_finished or self._aborted.is_set() or self._deadline.is_over or is_banned

    def _piece_deadline(self) -> Deadline:
        return self._deadline.sooner(self._settings.piece_timeout_s)

    def _use(self, connection: Connection) -> None:
        try:
            self._open(connection)
            while not self._is_over():
                unclaimed = self._board.unclaimed()
                if not unclaimed.any():
                    self._board.wait_until(
                        lambda: self._aborted.is_set() or self._board.is_finished or self._board.has_work,
                        self._settings.stop_poll_s,
                    )
                    continue
                self._take(connection, unclaimed)
        finally:
            connection.close()

    def _open(self, connection: Connection) -> None:
        try:
            connection.open(self._piece_deadline())
        except (OSError, WeightsError) as error:
            self._report.is_reached |= not is_out_of_reach(error)
            raise
        self._report.is_reached = True

    def _take(self, connection: Connection, unclaimed: Bits) -> None:
        wanted, settings = self._wanted, self._settings
        proposed = connection.recommend(
            wanted.weight_version,
            wanted.name,
            unclaimed,
            settings.pieces_at_once,
            settings.stop_poll_s,
            self._piece_deadline(),
        )
        if any(not 0 <= index < len(wanted.blob.digests) for index in proposed):
            raise WeightsError("proposes pieces that there are not")
        claimed = self._board.claim(proposed)
        try:
            while claimed and not self._is_over():
                self._read(connection, claimed[0])
                self._board.done(claimed.pop(0))
                self._failures = 0
        finally:
            self._board.give_back(claimed)

    def _read(self, connection: Connection, index: int) -> None:
        wanted = self._wanted
        start, end = wanted.blob.range_of(index)
        place = wanted.place(start, end)
        target = self._own_buffer()[: end - start] if place is None else place
        connection.read_piece(
            wanted.weight_version, wanted.name, index, start, target, self._piece_deadline()
        )
        if digest(target) != wanted.blob.digests[index]:
            self._report.wrong_pieces += 1
            wanted.wrong_pieces[str(self.source)] += 1
            raise WeightsError(f"piece {index} does not match its digest")
        if place is None:
            wanted.write(start, target)
        self._report.pieces += 1
        self._report.size_bytes += end - start

    def _own_buffer(self) -> memoryview:
        if self._buffer is None:  # read and verified here, while the processor's cache has it
            self._buffer = memoryview(bytearray(self._wanted.blob.piece_bytes))
        return self._buffer
