"""Preemption notices of spot machines, from each cloud's metadata service.

A notice is one URL on the machine itself, asked every few seconds. TERM (from Slurm's `--signal`, Kubernetes
or a person) needs no poller: the worker drains on it anyway.
"""

import asyncio
from dataclasses import dataclass

import aiohttp

POLL_S = 2.0


@dataclass(frozen=True, slots=True)
class NoticeSource:
    url: str
    headers: tuple[tuple[str, str], ...]
    notice_s: float
    """Time left once it says so."""
    quiet: tuple[str, ...] = ()
    """Answers that mean that nothing will happen, besides 404."""


SOURCES = {
    "aws": NoticeSource("http://169.254.169.254/latest/meta-data/spot/instance-action", (), 110.0),
    "gce": NoticeSource(
        "http://169.254.169.254/computeMetadata/v1/instance/preempted",
        (("Metadata-Flavor", "Google"),),
        25.0,
        ("FALSE",),
    ),
}


async def wait_for_notice(source: NoticeSource, session: aiohttp.ClientSession) -> str:
    """Wait for a preemption notice and return it."""
    timeout = aiohttp.ClientTimeout(total=POLL_S)
    while True:
        try:
            async with session.get(source.url, headers=dict(source.headers), timeout=timeout) as answer:
                text = (await answer.text()).strip()
                if answer.status == 200 and text not in source.quiet:
                    return f"preemption notice: {text[:200]}"
        except (aiohttp.ClientError, TimeoutError):
            pass  # no such service here, or it is busy: asked again
        await asyncio.sleep(POLL_S)
