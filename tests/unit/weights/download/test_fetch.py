"""A fetch ends, whatever its sources do, and asks none that keeps giving wrong bytes."""

import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.download import fetch as download
from rl_agent.weights.download.fetch import BlobFetch, BlobWanted
from rl_agent.weights.format.checksums import piece_digests
from rl_agent.weights.format.manifest import Blob
from rl_agent.weights.format.pieces import PieceSet
from tests.support.weight_transfers import with_fetch
from tests.unit.weights.weight_sources import raising

CONTENT = np.random.default_rng(0).bytes(1000)
BLOB = Blob(size_bytes=1000, piece_bytes=100, digests=piece_digests(CONTENT, 100, threads=1))


@dataclass
class FakeSource:
    """Gives `content`; every so many pieces it changes one, and it may never answer at all."""

    name: str = "fake"
    wrong_every: int = 0
    is_silent: bool = False
    proposes: list[int] | None = None
    questions: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        return self.name

    def connection(self) -> "FakeConnection":
        return FakeConnection(self)


class FakeConnection:
    is_cut_at_once = True

    def __init__(self, source: FakeSource) -> None:
        self._source = source
        self._interrupted = threading.Event()

    def open(self, deadline):
        if self._source.is_silent:
            assert self._interrupted.wait(60), "nobody interrupted the wait"
            raise ConnectionAbortedError("interrupted")

    def interrupt(self):
        self._interrupted.set()

    def close(self):
        pass

    def recommend(self, weight_version, blob, wanted, limit, wait_s, deadline):
        if self._source.proposes is not None:
            return self._source.proposes
        return np.flatnonzero(wanted)[:limit].tolist()

    def read_piece(self, weight_version, blob, index, start, target, deadline):
        self._source.questions.append(index)
        target[:] = CONTENT[start : start + len(target)]
        if self._source.wrong_every and len(self._source.questions) % self._source.wrong_every == 0:
            target[0] ^= 1


@dataclass
class LateSource(FakeSource):
    """Writes wrong bytes into what it is given, also once it was told to end; then it ends, or never does."""

    is_cut_at_once: bool = True
    reads: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    may_end: threading.Event = field(default_factory=threading.Event)

    def connection(self):
        return LateConnection(self)


class LateConnection(FakeConnection):
    def __init__(self, source):
        super().__init__(source)
        self.is_cut_at_once = source.is_cut_at_once

    def read_piece(self, weight_version, blob, index, start, target, deadline):
        target[:50] = bytes(50)
        self._source.reads.release()
        assert self._interrupted.wait(60), "nobody interrupted the wait"
        if not self.is_cut_at_once:
            assert self._source.may_end.wait(60)
        target[:] = bytes(len(target))
        raise ConnectionAbortedError("interrupted")


def fetch(*sources, stop=None, timeout_s=30.0, is_in_place=False, write=None, **settings):
    written = bytearray(1000)

    def place(start, end):
        return memoryview(written)[start:end] if is_in_place else None

    def write_there(start, content):
        written[start : start + len(content)] = content

    pieces = PieceSet(10)
    try:
        BlobFetch(
            BlobWanted(1, "full", BLOB, write or write_there, place),
            pieces,
            with_fetch(streams_per_source=1, **settings),
            Deadline.after(timeout_s),
            stop or threading.Event(),
            {},
        ).run(sources)
    finally:
        for index in range(pieces.count):
            start, end = BLOB.range_of(index)
            if index in pieces or not is_in_place:
                right = CONTENT[start:end] if index in pieces else bytes(end - start)
                assert written[start:end] == right, "bytes were written that were not verified"
    return memoryview(written)


def test_every_piece_is_written_once_it_is_right():
    assert fetch(FakeSource()) == CONTENT


def test_a_source_with_too_many_wrong_pieces_is_left_despite_right_ones(monkeypatch):
    monkeypatch.setattr(download, "MAX_WRONG_PIECES", 2)
    monkeypatch.setattr(download, "RETRY_PAUSE_S", 0.0)
    source = FakeSource(wrong_every=2)
    with pytest.raises(WeightsError, match="does not match its digest"):
        fetch(source, retries=1000)
    assert len(source.questions) == 6


def test_another_source_gives_what_a_bad_one_cannot(monkeypatch):
    monkeypatch.setattr(download, "MAX_WRONG_PIECES", 1)
    assert fetch(FakeSource("bad", wrong_every=1), FakeSource("good")) == CONTENT


def test_a_silent_source_delays_neither_end_nor_stop_nor_deadline():
    silent = FakeSource("silent", is_silent=True)
    assert fetch(silent, FakeSource()) == CONTENT
    with pytest.raises(WeightsError, match="at the deadline"):
        fetch(silent, timeout_s=0.05)
    stop = threading.Event()
    stop.set()
    with pytest.raises(WeightsError, match="cancelled"):
        fetch(silent, stop=stop)


def test_a_source_that_proposes_pieces_there_are_not_is_left():
    with pytest.raises(WeightsError, match="pieces that do not exist"):
        fetch(FakeSource(proposes=[99]))


def test_unwritable_bytes_are_an_error_and_not_a_hang():
    with pytest.raises(MemoryError):
        fetch(FakeSource(), write=raising(MemoryError("no room")))


@pytest.fixture
def impatient(monkeypatch):
    """Every piece that is on its way is fetched beside by whoever has nothing else to do."""
    monkeypatch.setattr("rl_agent.weights.download.endgame.PATIENCE_S", 0.0)
    monkeypatch.setattr("rl_agent.weights.download.endgame._CLEARLY", 0.0)
    monkeypatch.setattr("rl_agent.weights.download.fetch.GRACE_S", 0.1)


@pytest.mark.parametrize("is_cut_at_once", [True, False])
def test_late_bytes_of_a_slow_source_reach_no_piece_brought_by_another(impatient, is_cut_at_once):
    late = LateSource("late", is_cut_at_once=is_cut_at_once)

    class Honest(FakeSource):
        def connection(self):
            assert late.reads.acquire(timeout=30)
            late.reads.release()
            return super().connection()

    written = fetch(late, Honest("honest"), is_in_place=True)
    assert written == CONTENT
    late.may_end.set()
    for thread in threading.enumerate():
        if thread.name == "fetch-late":
            thread.join(30)
    assert written == CONTENT
