"""Preemption notices of spot machines, from each cloud's metadata service.

    aws    a session token (IMDSv2), then spot/instance-action every 2 s: 404 until the machine is taken back
    gcp    instance/preempted, held open by the service until it changes
    azure  Scheduled Events every 2 s: a Preempt or Terminate of this machine
    auto   the first of these whose metadata service answers

The services are documented by AWS ("Spot Instance interruption notices", "Use IMDSv2"), Google ("View and
query VM metadata") and Microsoft ("Scheduled Events for Linux VMs"). Slurm (`--signal`) and Kubernetes (the
grace period) send TERM, which needs no watcher: the worker drains on it anyway.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import aiohttp

from rl_agent.errors import in_one_line

log = logging.getLogger(__name__)

METADATA = "http://169.254.169.254"
POLL_S = 2.0
ANSWER_S = 10.0
"""An answer may take so long: of the shortest notice, 30 s, enough is left for a drain."""
FAILURES_BEFORE_WARNING = 5
AWS_NOTICE_S = 120.0
SEARCH_S = 30.0
"""The time between two searches for a metadata service where none answered."""
HELD_S = 60
"""The time that Google's service may hold a question."""
AZURE_FIRST_S = 130.0
"""The first question for Scheduled Events turns the service on, which takes up to two minutes."""
SHORTEST_S = 10.0
_OF_GOOGLE = {"Metadata-Flavor": "Google"}
_OF_AZURE = {"Metadata": "true"}
_FAILURES = (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError, AttributeError)
"""No such service here, it is busy, or it answers what its cloud does not."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The announcement that this machine will be taken back."""

    words: str
    left_s: float
    """Seconds until then."""


class NoticeSource(Protocol):
    """A cloud's metadata service; one that does not answer as its cloud does raises one of `_FAILURES`."""

    async def is_here(self, session: aiohttp.ClientSession) -> bool:
        """Return whether this machine is one of this cloud."""
        ...

    async def ask(self, session: aiohttp.ClientSession) -> Notice | None:
        """Ask once; None while nothing will happen."""
        ...


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class AwsNotice:
    """Notices of Amazon EC2, two minutes ahead."""

    base: str = METADATA
    now: Callable[[], datetime] = _utc_now
    _token: str = ""

    async def is_here(self, session: aiohttp.ClientSession) -> bool:
        self._token = await self._new_token(session)
        return bool(self._token)

    async def ask(self, session: aiohttp.ClientSession) -> Notice | None:
        for _ in range(2):
            self._token = self._token or await self._new_token(session)
            headers = {"X-aws-ec2-metadata-token": self._token}
            url = f"{self.base}/latest/meta-data/spot/instance-action"
            status, text, _ = await _call(session, "GET", url, headers)
            if status != 401:
                break
            self._token = ""  # it has expired
        if status == 404:
            return None
        action = json.loads(_answered(status, text))
        left_s = _seconds_until(action["time"], datetime.fromisoformat, self.now(), AWS_NOTICE_S)
        return Notice(f"AWS will {action['action']} this machine", left_s)

    async def _new_token(self, session: aiohttp.ClientSession) -> str:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
        status, token, _ = await _call(session, "PUT", f"{self.base}/latest/api/token", ttl)
        return token if status == 200 else ""


@dataclass(slots=True)
class GcpNotice:
    """Notices of Google Compute Engine, 30 s ahead."""

    base: str = METADATA
    _etag: str = "0"

    async def is_here(self, session: aiohttp.ClientSession) -> bool:
        _, _, headers = await _call(session, "GET", f"{self.base}/", _OF_GOOGLE)
        return headers.get("Metadata-Flavor") == "Google"

    async def ask(self, session: aiohttp.ClientSession) -> Notice | None:
        held = f"wait_for_change=true&timeout_sec={HELD_S}&last_etag={self._etag}"
        url = f"{self.base}/computeMetadata/v1/instance/preempted?{held}"
        status, text, headers = await _call(session, "GET", url, _OF_GOOGLE, HELD_S + 10)
        _answered(status, text)
        self._etag = headers.get("ETag", "0")
        return Notice("Google takes this machine back", 30.0) if text.strip() == "TRUE" else None


@dataclass(slots=True)
class AzureNotice:
    """Notices of Azure, at least 30 s ahead. An event may be for other machines of the same scale set."""

    base: str = METADATA
    now: Callable[[], datetime] = _utc_now
    _own_name: str = ""
    _has_answered: bool = False

    async def is_here(self, session: aiohttp.ClientSession) -> bool:
        url = f"{self.base}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        status, name, _ = await _call(session, "GET", url, _OF_AZURE)
        self._own_name = name.strip() if status == 200 else ""
        return bool(self._own_name)

    async def ask(self, session: aiohttp.ClientSession) -> Notice | None:
        url = f"{self.base}/metadata/scheduledevents?api-version=2020-07-01"
        timeout_s = ANSWER_S if self._has_answered else AZURE_FIRST_S
        status, text, _ = await _call(session, "GET", url, _OF_AZURE, timeout_s)
        events = json.loads(_answered(status, text))["Events"]
        self._has_answered = True
        for event in events:
            if event["EventType"] in ("Preempt", "Terminate") and await self._is_own(event, session):
                left_s = _seconds_until(event["NotBefore"], parsedate_to_datetime, self.now(), 30.0)
                return Notice(f"Azure announces {event['EventType']} of this machine", left_s)
        return None

    async def _is_own(self, event: Mapping[str, Any], session: aiohttp.ClientSession) -> bool:
        """Return whether an event is of this machine; one that does not learn its name leaves."""
        if not self._own_name and not await self.is_here(session):
            return True
        return self._own_name in event["Resources"]


@dataclass(slots=True)
class AnyNotice:
    """Notices of whichever cloud this machine is of, found by its metadata service."""

    base: str = METADATA
    _found: NoticeSource | None = None
    _has_logged: bool = False
    _sources: tuple[NoticeSource, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._sources = (GcpNotice(self.base), AzureNotice(self.base), AwsNotice(self.base))

    async def is_here(self, session: aiohttp.ClientSession) -> bool:
        for source in self._sources:
            try:
                is_here = await source.is_here(session)
            except _FAILURES:
                continue
            if is_here:
                self._found = source
                log.info("preemption notices come from %s", type(source).__name__.removesuffix("Notice"))
                return True
        return False

    async def ask(self, session: aiohttp.ClientSession) -> Notice | None:
        if self._found is not None:
            return await self._found.ask(session)
        if not await self.is_here(session):
            if not self._has_logged:
                self._has_logged = True
                log.warning("no cloud's metadata service answers at %s: no preemption notices", self.base)
            await asyncio.sleep(SEARCH_S)
        return None


SOURCES: Mapping[str, Callable[[], NoticeSource]] = {
    "aws": AwsNotice,
    "gcp": GcpNotice,
    "azure": AzureNotice,
    "auto": AnyNotice,
}


async def wait_for_notice(source: NoticeSource, session: aiohttp.ClientSession) -> Notice:
    """Wait for a preemption notice and return it; a service that cannot be heard is logged, once."""
    num_failures = 0
    while True:
        try:
            if (notice := await source.ask(session)) is not None:
                return notice
            if num_failures >= FAILURES_BEFORE_WARNING:
                log.info("the metadata service answers again: preemption notices arrive again")
            num_failures = 0
        except _FAILURES as error:
            num_failures += 1
            reason = in_one_line(error)
            if num_failures == FAILURES_BEFORE_WARNING:
                log.warning(
                    "no preemption notice can arrive, because the metadata service does not answer: %s",
                    reason,
                )
            log.debug("the metadata service: %r", error)
        await asyncio.sleep(POLL_S)


def _answered(status: int, text: str) -> str:
    """Return the text of an answer. Raises ValueError if its status is not 200."""
    if status != 200:
        raise ValueError(f"it answers {status}")
    return text


async def _call(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: Mapping[str, str],
    timeout_s: float | None = None,
) -> tuple[int, str, Mapping[str, str]]:
    timeout = aiohttp.ClientTimeout(total=ANSWER_S if timeout_s is None else timeout_s)
    async with session.request(
        method, url, headers=headers, timeout=timeout, allow_redirects=False
    ) as answer:
        return answer.status, await answer.text(), answer.headers


def _seconds_until(text: str, parse: Callable[[str], datetime], now: datetime, usual_s: float) -> float:
    """Return the seconds until a time that a cloud names; the usual notice where it names none.

    Never more than usual, never less than SHORTEST_S: this machine's clock may be wrong.
    """
    try:
        left_s = (parse(text) - now).total_seconds()
    except (ValueError, TypeError):  # no time, as of an event of Azure that has begun
        left_s = usual_s
    return min(usual_s, max(SHORTEST_S, left_s))
