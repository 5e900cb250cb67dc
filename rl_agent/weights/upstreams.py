"""Whom a version is had from: upstreams, one after the other, each for what those before it could not give.

    a source is wrong, slow or cut    it is tried a few times, by `fetch`; the others of its upstream go on
    all of an upstream have failed    the next upstream is asked for the rest
    nobody answers at an address      unless it is of the last upstream, it is not asked for a while
    a source does not let go          the same; the thread in it is left behind
    so at all origins of an upstream  its peers are asked beside the next: they may wait for this receiver
    the last upstream has failed      an error names each source; at the next try all are asked again

It ends at the deadline, or when told to stop.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TypeVar

from rl_agent.errors import WeightsError
from rl_agent.weights.asking import first_answer
from rl_agent.weights.deadline import Deadline
from rl_agent.weights.fetch import BlobWanted, FetchSettings, SourceReport, fetch_blob
from rl_agent.weights.given_up import GIVEN_UP_S, GivenUp
from rl_agent.weights.pieces import PieceSet
from rl_agent.weights.source import Fenced, Source, SourceFailure

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Upstream:
    """Sources that are asked side by side."""

    origins: Sequence[Source]
    """Each has all of a version."""
    peers: Sequence[Source] = ()
    """Give what they have so far."""


@dataclass
class ReceiveReport:
    """How a version came."""

    deltas: int = 0
    """Deltas that were applied; 0: a full transfer."""
    resumed_bytes: int = 0
    by_source: dict[str, SourceReport] = field(default_factory=dict)

    @property
    def fetched_bytes(self) -> int:
        return sum(source.size_bytes for source in self.by_source.values())


@dataclass(frozen=True, slots=True)
class Transfer:
    """One version from its upstreams, in the time that is left for it."""

    settings: FetchSettings
    upstreams: Sequence[Upstream]
    out_of_reach: GivenUp
    deadline: Deadline
    stop: threading.Event
    report: ReceiveReport

    @property
    def is_over(self) -> bool:
        return self.stop.is_set() or self.deadline.is_over

    def ask(self, question: Callable[[Fenced, Deadline], _T], *, retries: int) -> _T:
        """The first answer that any source gives. Raises WeightsError with all their reasons if none does."""
        reasons: dict[str, str] = {}

        def note(source: Source, failure: SourceFailure) -> None:
            reasons[str(source)] = str(failure)
            if failure.is_stuck or (failure.is_out_of_reach and not self.deadline.is_over):
                self._leave_out(source, failure)

        for attempt in range(retries + 1):
            if attempt and self.stop.wait(self.settings.retry_pause_s * attempt):
                break
            answer = first_answer(
                list(chain.from_iterable(self._ways())),
                question,
                self.deadline,
                self.stop,
                note,
                within_s=self.settings.piece_timeout_s,
                poll_s=self.settings.stop_poll_s,
            )
            if answer is not None:
                return answer
        if self.stop.is_set():
            raise WeightsError("told to stop")
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise WeightsError(why or "there is no source")

    def fetch(self, wanted: BlobWanted, pieces: PieceSet) -> None:
        for way, next_way in pairwise([*self._ways(), []]):
            try:
                return self._fetch_from(way, wanted, pieces)
            except WeightsError as error:
                if not next_way or self.is_over:
                    raise
                _log.warning("%s; asking %s", error, ", ".join(map(str, next_way)))

    def _fetch_from(self, sources: Sequence[Source], wanted: BlobWanted, pieces: PieceSet) -> None:
        reports = self.report.by_source
        try:
            fetch_blob(wanted, pieces, sources, self.settings, self.deadline, self.stop, reports)
        finally:
            for source in sources:
                report = reports[str(source)]
                if report.is_stuck or (report.failures and not report.is_reached):
                    self._leave_out(source, report.failures[-1])

    def _ways(self) -> list[list[Source]]:
        """Whom to ask side by side, in order. Peers whose origins are out of reach come beside the next."""
        *others, last = self.upstreams
        ways: list[list[Source]] = []
        peers: list[Source] = []
        for upstream in others:
            peers += self._in_reach(upstream.peers)
            if origins := self._in_reach(upstream.origins):
                ways.append([*origins, *peers])
                peers = []
        return [*ways, [*last.origins, *last.peers, *peers]]

    def _in_reach(self, sources: Sequence[Source]) -> list[Source]:
        return [source for source in sources if str(source) not in self.out_of_reach]

    def _leave_out(self, source: Source, why: object) -> None:
        last = self.upstreams[-1]
        if source not in (*last.origins, *last.peers):
            _log.warning("%s is out of reach; others are asked for %g s: %s", source, GIVEN_UP_S, why)
            self.out_of_reach.add(str(source))
