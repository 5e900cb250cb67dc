"""Loads weights into a running vLLM server: every worker reads the version and loads its share of it."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from rl_agent.errors import WeightsError
from rl_agent.weights.format.adapter import (
    BASE,
    DIGEST_BYTES,
    LayerShape,
    adapter_layers,
    base_digest,
    is_adapter,
)
from rl_agent.weights.load.base import (
    LOAD_TIMEOUT_S,
    LoadRefused,
    NotLoaded,
    RunningServer,
    VerifiedVersion,
    folder_version,
)
from rl_agent.weights.load.same_model import Shapes, check_same_base, shapes_of
from rl_agent.weights.load.vllm_names import LOAD
from rl_agent.weights.sources.source import one_line
from rl_agent.weights.store.model_folder import adapter_folder
from rl_agent.weights.store.store import FULL, Snapshot, Stamp
from rl_agent.weights.store.tensor_sources import Checkpoint, files_in, local_folder


class VllmServer(RunningServer):
    """See `RunningServer`; the server was started with `vllm_names.WORKER_EXTENSION` on `model`.

    That is a folder or a hub name, for which an adapter alone is made; "" where none will come.
    """

    slot = 0
    """The slot of the run's adapter."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, model: str = "", *, timeout_s: float = LOAD_TIMEOUT_S
    ) -> None:
        super().__init__(session, url, timeout_s=timeout_s)
        self._model = model
        self._base: BaseModel | None = None

    @asynccontextmanager
    async def _prepared(self, snapshot: Snapshot, stamp: Stamp | None) -> AsyncIterator[VerifiedVersion]:
        if not is_adapter(snapshot.manifest):
            yield VerifiedVersion(snapshot, stamp)
            return
        if self._base is None or await asyncio.to_thread(self._base.has_changed):
            self._base = await asyncio.to_thread(BaseModel.of, self._model)
        layers = self._base.check(snapshot)
        async with folder_version(snapshot, stamp, adapter_folder(snapshot, layers)) as version:
            yield version

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
        adapter = None if version.folder is None else (str(version.folder), self.slot)
        arguments: list[Any] = [str(snapshot.folder.parent), snapshot.weight_version, digest]
        arguments += [None if stamp is None else list(stamp), adapter]
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


Stamps = list[tuple[Path, int, int]]
"""Path, size and time of change of files."""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The model that a server was started on, for which an adapter has to be made."""

    name: str
    shapes: Shapes
    digest: bytes
    stamps: Stamps

    @classmethod
    def of(cls, model: str) -> "BaseModel":
        """Read it once. Raises WeightsError if it is not on this host."""
        folder = local_folder(model) if model else None
        if folder is None:
            raise WeightsError(
                f"{model or 'the model'}: is not on this host, so no adapter can be compared with it"
            )
        try:
            stamps = _stamps(folder)  # before: a file that changes meanwhile is read again
            digest = base_digest(files_in(folder), threads=len(os.sched_getaffinity(0)))
        except OSError as error:
            raise WeightsError(f"{folder}: cannot be read: {error}") from error
        return cls(model, shapes_of(Checkpoint.of(folder)), digest, stamps)

    def has_changed(self) -> bool:
        """Return whether its files are others than those that were read, or a hub name leads to others."""
        folder = local_folder(self.name)
        try:
            return folder is None or _stamps(folder) != self.stamps
        except OSError:
            return True

    def check(self, snapshot: Snapshot) -> Mapping[str, LayerShape]:
        """Return the layers of an adapter. Raises WeightsError if it was made for another model.

        One of the same shape counts as another, too: a fine-tuned model has those of the one below it.
        """
        tensors = snapshot.manifest.tensors
        (entry,) = (tensor for tensor in tensors if tensor.name == BASE)
        digest = bytes(snapshot.map(FULL)[entry.start : entry.end])
        layers = adapter_layers(tensors)
        check_same_base(layers, self.shapes)
        if len(digest) != DIGEST_BYTES or digest != self.digest:
            raise WeightsError(
                f"{self.name}: is not the model that the adapter was made for, though of the same shape: its"
                " files of weights differ"
            )
        return layers


def _stamps(folder: Path) -> Stamps:
    return [(path, stat.st_size, stat.st_mtime_ns) for path in files_in(folder) for stat in (path.stat(),)]
