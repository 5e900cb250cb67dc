"""Tries sources in their order, and falls back to the next for what those before could not give.

    a source is wrong, slow or cut    it is tried a few times, by `fetch`; the others of its upstream go on
    all of an upstream have failed    the next upstream is asked for the rest
    nobody answers at an address      unless it is of the last upstream, it is not asked for a while
    a source does not let go          the same; the thread in it is left behind
    so at all origins of an upstream  its peers are asked beside the next: they may wait for this receiver
    the last upstream has failed      an error names each source; at the next try all are asked again

It ends at the deadline, or when cancelled.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TypeVar

from rl_agent.config.sections.weights import WeightsConfig
from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.download.fetch import RETRY_PAUSE_S, BlobFetch, BlobWanted, SourceReport
from rl_agent.weights.format.pieces import PieceSet
from rl_agent.weights.sources.asking import first_answer
from rl_agent.weights.sources.cooldown import COOLDOWN_S, Cooldown
from rl_agent.weights.sources.source import GuardedConnection, Source, SourceFailure

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
    """A summary of how a version was fetched."""

    deltas: int = 0
    """Deltas that were applied; 0: a full transfer."""
    resumed_bytes: int = 0
    """Bytes of pieces that were here: from an earlier try, or because the version before has them, too."""
    by_source: dict[str, SourceReport] = field(default_factory=dict)

    @property
    def fetched_bytes(self) -> int:
        return sum(source.size_bytes for source in self.by_source.values())


@dataclass(frozen=True, slots=True)
class Transfer:
    """The transfer of one version from its upstreams, until a deadline."""

    settings: WeightsConfig
    upstreams: Sequence[Upstream]
    out_of_reach: Cooldown
    deadline: Deadline
    stop: threading.Event
    report: ReceiveReport

    @property
    def is_over(self) -> bool:
        return self.stop.is_set() or self.deadline.is_over

    def ask(self, question: Callable[[GuardedConnection, Deadline], _T], *, retries: int) -> _T:
        """Return the first answer of any source. Raises WeightsError with all reasons if there is none."""
        reasons: dict[str, str] = {}

        def note(source: Source, failure: SourceFailure) -> None:
            reasons[str(source)] = str(failure)
            if failure.is_stuck or (failure.is_out_of_reach and not self.deadline.is_over):
                self._leave_out(source, failure)

        for attempt in range(retries + 1):
            if attempt and self.stop.wait(RETRY_PAUSE_S * attempt):
                break
            answer = first_answer(
                list(chain.from_iterable(self._rounds())),
                question,
                self.deadline,
                self.stop,
                note,
            )
            if answer is not None:
                return answer
        if self.stop.is_set():
            raise WeightsError("the transfer was cancelled")
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise WeightsError(why or "there is no source")

    def fetch(self, blob: BlobWanted, pieces: PieceSet) -> None:
        for sources, next_round in pairwise([*self._rounds(), []]):
            try:
                return self._fetch_from(sources, blob, pieces)
            except WeightsError as error:
                if not next_round or self.is_over:
                    raise
                _log.warning("%s; asking %s", error, ", ".join(map(str, next_round)))

    def _fetch_from(self, sources: Sequence[Source], blob: BlobWanted, pieces: PieceSet) -> None:
        reports = self.report.by_source
        try:
            BlobFetch(blob, pieces, self.settings, self.deadline, self.stop, reports).run(sources)
        finally:
            for source in sources:
                report = reports[str(source)]
                if report.is_stuck or (report.failures and not report.is_reached):
                    self._leave_out(source, report.failures[-1])

    def _rounds(self) -> list[list[Source]]:
        """Return groups of sources to ask at once. Peers whose origins are out of reach join the next."""
        *others, last = self.upstreams
        rounds: list[list[Source]] = []
        peers: list[Source] = []
        for upstream in others:
            peers += self._in_reach(upstream.peers)
            if origins := self._in_reach(upstream.origins):
                rounds.append([*origins, *peers])
                peers = []
        return [*rounds, [*last.origins, *last.peers, *peers]]

    def _in_reach(self, sources: Sequence[Source]) -> list[Source]:
        return [source for source in sources if str(source) not in self.out_of_reach]

    def _leave_out(self, source: Source, why: object) -> None:
        last = self.upstreams[-1]
        if source not in (*last.origins, *last.peers):
            _log.warning("%s is out of reach; other sources are used for %g s: %s", source, COOLDOWN_S, why)
            self.out_of_reach.add(str(source))
