"""Loads a version that is on this host into a running vLLM server.

    verify the bytes ─► pause, keeping requests ─► load on every worker ─► drop caches ─► resume
      (while it generates)        │                       │ fails
                                  │                       ▼
                                  └───────── load the version before ─► resume, and say what failed
                                             (if a worker has changed)

Requests that were running go on with the tokens they have; their next tokens come from the new weights. The
server never resumes with weights of two versions: when neither version can be loaded it stays paused, and
`TornEngine` says so.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from rl_agent.errors import WeightsError
from rl_agent.weights.load.base import LoadReport, Routes, TornEngine, verify
from rl_agent.weights.load.vllm_names import LOAD, READ_FINGERPRINT
from rl_agent.weights.sources.source import one_line
from rl_agent.weights.store.store import Snapshot, Stamp


class _Refused(WeightsError):
    """No worker has changed anything: each still holds what it held."""


class VllmServer:
    """The routes of one server that concern weights; it listens on this host."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, timeout_s: float) -> None:
        self._routes = Routes(session, url, timeout_s=timeout_s)
        self._url = self._routes.url

    async def load(
        self,
        snapshot: Snapshot,
        *,
        previous: Snapshot | None,
        on_loaded: Callable[[], Awaitable[None]] | None = None,
    ) -> LoadReport:
        """See `RunningServer`. What was cancelled, the next load takes on from there."""
        stamp = await asyncio.to_thread(verify, snapshot)
        began = time.monotonic()
        try:
            await self._routes.post("/pause", {"mode": "keep", "clear_cache": "true"})
        except WeightsError:
            with contextlib.suppress(WeightsError):  # it may be paused although its answer did not come
                await self._routes.post("/resume")
            raise
        try:
            results = await self._load_and_reset(snapshot, stamp)
        except _Refused as error:
            await self._go_on(error)
            raise
        except WeightsError as error:
            await self._go_back(previous, error)
            raise
        if on_loaded is not None:
            await on_loaded()
        try:
            await self._routes.post("/resume")
        except WeightsError as error:
            raise TornEngine(f"{self._url}: has the new version and does not go on: {error}") from error
        return LoadReport(
            weight_version=snapshot.weight_version,
            pause_s=time.monotonic() - began,
            load_s=max(float(result["load_s"]) for result in results),
            fingerprints=tuple(str(result["fingerprint"]) for result in results),
        )

    async def sleep(self) -> None:
        """Give the device's memory back, as far as the platform has that; the weights wait in host memory."""
        await self._routes.post("/sleep", {"level": "1"})

    async def wake(self) -> None:
        """Resume with the weights that it had."""
        await self._routes.post("/wake_up")

    async def fingerprints(self) -> tuple[str, ...]:
        return tuple(map(str, await self._call(READ_FINGERPRINT)))

    async def _go_on(self, why: WeightsError) -> None:
        """Resume with the weights from before the pause."""
        try:
            await self._routes.post("/resume")
        except WeightsError as error:
            raise TornEngine(f"{self._url}: {why}; it does not go on: {error}") from error

    async def _go_back(self, previous: Snapshot | None, why: WeightsError) -> None:
        if previous is None:
            raise TornEngine(f"{self._url}: {why}; there is no earlier version to go back to") from why
        try:
            await self._load_and_reset(previous)
            await self._routes.post("/resume")
        except WeightsError as error:
            raise TornEngine(f"{self._url}: {why}; going back failed as well: {error}") from error

    async def _load_and_reset(self, snapshot: Snapshot, stamp: Stamp | None = None) -> list[dict[str, Any]]:
        """`stamp`: of the bytes that were verified; each worker makes sure that it has loaded those."""
        digest = snapshot.manifest.digest
        arguments: list[Any] = [str(snapshot.folder.parent), snapshot.weight_version, digest]
        arguments += [list(stamp)] if stamp is not None else []
        results = await self._call(LOAD, arguments)
        errors = [result for result in results if isinstance(result, dict) and "error" in result]
        if errors:
            held = {error.get("held") for error in errors}
            is_untouched = len(errors) == len(results) and len(held) == 1 and held != {None}
            raise (_Refused if is_untouched else WeightsError)(
                f"{self._url}: {one_line(str(errors[0]['error']), 500)}"
            )
        if not results or any(
            not isinstance(result, dict) or result.get("digest") != digest for result in results
        ):
            raise WeightsError(f"{self._url}: a worker did not load version {snapshot.weight_version}")
        await self._reset_caches()
        label = {"new_version": str(snapshot.weight_version)}
        # It came after vLLM 0.26.
        await self._routes.post("/update_weight_version", body=label, may_be_missing=True)
        return results

    async def _reset_caches(self) -> None:
        """What was computed with the old weights must not be met by requests under the new ones."""
        answer = await self._routes.post("/reset_prefix_cache", {"reset_running_requests": "true"})
        if isinstance(answer, dict) and answer.get("success") is False:
            raise WeightsError(f"{self._url}: could not reset its prefix cache")
        for route in ("/reset_mm_cache", "/reset_encoder_cache"):
            await self._routes.post(route)

    async def _call(self, method: str, arguments: list[Any] | None = None) -> list[Any]:
        answer = await self._routes.post("/collective_rpc", body={"method": method, "args": arguments or []})
        results = answer.get("results") if isinstance(answer, dict) else None
        return results if isinstance(results, list) else []
