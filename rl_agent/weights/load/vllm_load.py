"""Loads weights into a running vLLM server: every worker reads the version and loads its share of it."""

from typing import Any

from rl_agent.errors import WeightsError
from rl_agent.weights.load.base import LoadRefused, NotLoaded, RunningServer, VerifiedVersion
from rl_agent.weights.load.vllm_names import LOAD
from rl_agent.weights.sources.source import one_line


class VllmServer(RunningServer):
    """See `RunningServer`; the server was started with `vllm_names.WORKER_EXTENSION`."""

    async def sleep(self) -> None:
        """Give the device's memory back, as far as the platform has that; the weights wait in host memory."""
        await self._ask("/sleep", {"level": "1"})

    async def wake(self) -> None:
        """Resume with the weights that it had."""
        await self._ask("/wake_up")

    async def _pause_generation(self) -> None:
        # Caches are reset after the load, whatever was computed until then.
        await self._ask("/pause", {"mode": "keep", "clear_cache": "false"})

    async def _resume_generation(self) -> None:
        await self._ask("/resume")

    async def _load(self, version: VerifiedVersion) -> float:
        """Let every worker load the version, and check that it has loaded the bytes that were verified."""
        try:
            results = await self._load_on_workers(version)
            await self._reset_caches()
            label = {"new_version": str(version.snapshot.weight_version)}
            # It came after vLLM 0.26.
            await self._ask("/update_weight_version", body=label, may_be_missing=True)
        except LoadRefused:
            raise
        except WeightsError as error:
            raise NotLoaded(str(error)) from error
        return max(float(result["load_s"]) for result in results)

    async def _load_on_workers(self, version: VerifiedVersion) -> list[dict[str, Any]]:
        snapshot, stamp = version.snapshot, version.stamp
        digest = snapshot.manifest.digest
        arguments: list[Any] = [str(snapshot.folder.parent), snapshot.weight_version, digest]
        arguments += [list(stamp)] if stamp is not None else []
        results = await self._call(LOAD, arguments)
        errors = [result for result in results if isinstance(result, dict) and "error" in result]
        if errors:
            held = {error.get("held") for error in errors}
            is_refused = len(errors) == len(results) and len(held) == 1 and held != {None}
            reason = one_line(str(errors[0]["error"]), 500)
            raise (LoadRefused if is_refused else WeightsError)(f"{self._url}: {reason}")
        if not results or any(
            not isinstance(result, dict) or result.get("digest") != digest for result in results
        ):
            raise WeightsError(f"{self._url}: a worker did not load version {snapshot.weight_version}")
        return results

    async def _reset_caches(self) -> None:
        """Drop what was computed with the old weights, so that no request under the new ones meets it."""
        answer = await self._ask("/reset_prefix_cache", {"reset_running_requests": "true"})
        if isinstance(answer, dict) and answer.get("success") is False:
            raise WeightsError(f"{self._url}: could not reset its prefix cache")
        for route in ("/reset_mm_cache", "/reset_encoder_cache"):
            await self._ask(route)

    async def _call(self, method: str, arguments: list[Any] | None = None) -> list[Any]:
        answer = await self._ask("/collective_rpc", body={"method": method, "args": arguments or []})
        results = answer.get("results") if isinstance(answer, dict) else None
        return results if isinstance(results, list) else []
