"""Loads weights into a running SGLang server, from a model folder that is written while it generates.

While it is paused SGLang takes running requests back into its queue (`retract`) and computes what they have
so far anew, with the new weights. Paused where they are (`in_place`) they would go on with what the old
weights computed, and its caches could not be dropped.

SGLang 0.5.23 takes a version of another model without a word: it passes over tensors that it does not know,
keeps the old values of those that are missing, and takes some of another shape. After an error of its loader
it says that it has rolled back, and has loaded the same folder again. So names and shapes are compared here,
and after any error a whole version is loaded. What it holds after a load is told by its word and its label.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from rl_agent.errors import WeightsError
from rl_agent.weights.format.adapter import is_adapter
from rl_agent.weights.load.base import (
    LOAD_TIMEOUT_S,
    NoAnswer,
    NotLoaded,
    RunningServer,
    TornEngine,
    VerifiedVersion,
    folder_version,
)
from rl_agent.weights.load.same_model import Shapes, check_same_model, shapes_of
from rl_agent.weights.store.model_folder import model_folder
from rl_agent.weights.store.store import Snapshot, Stamp
from rl_agent.weights.store.tensor_sources import Checkpoint, local_folder

_QUANTIZING = ("quantization", "modelopt_quant", "rl_quant_profile")
_UNFIT = {
    "hicache_storage_backend": "what older weights computed would stay in its cache's storage",
    "enable_lmcache": "what older weights computed would stay in its cache's storage",
    "speculative_draft_model_path": "its draft model would be given the same weights",
    "weight_cache_mode": "other servers have the same weights in the same memory",
}
"""Settings under which a server is given no version, and why."""


class SglangServer(RunningServer):
    """See `RunningServer`; the server was started on `model`, a folder or a hub name."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, model: str, *, timeout_s: float = LOAD_TIMEOUT_S
    ) -> None:
        super().__init__(session, url, timeout_s=timeout_s)
        self._model = model
        self._shapes: Shapes | None = None

    @asynccontextmanager
    async def _prepared(self, snapshot: Snapshot, stamp: Stamp | None) -> AsyncIterator[VerifiedVersion]:
        if self._shapes is None:
            _check_settings(self._url, await self._ask("/server_info", method="GET"))
            self._shapes = await asyncio.to_thread(_shapes_of_unquantized, self._model)
        if is_adapter(snapshot.manifest):
            raise WeightsError(
                f"{self._url}: SGLang gets merged weights here, no adapter alone; set"
                " trainer.lora.publish=merged, or lend a vLLM"
            )
        check_same_model(snapshot, self._shapes)
        context = model_folder(snapshot, self._shapes.keys())
        async with folder_version(snapshot, stamp, context) as version:
            yield version

    async def _pause_generation(self) -> None:
        await self._ask("/pause_generation", body={"mode": "retract"})

    async def _resume_generation(self) -> None:
        await self._ask("/continue_generation", body={})

    async def _load(self, version: VerifiedVersion) -> float:
        began = time.monotonic()
        label = str(version.snapshot.weight_version)
        body = {"model_path": str(version.folder), "load_format": "safetensors", "weight_version": label}
        try:
            await self._ask("/update_weights_from_disk", body=body | {"flush_cache": True})
            held = (await self._ask("/model_info", method="GET")).get("weight_version")
            if held != label:
                raise WeightsError(f"{self._url}: says that it has version {held} after a load of {label}")
        except NoAnswer as error:  # what it says later would be taken for the answer to the next load
            raise TornEngine(f"{error}; what it has loaded is not known") from error
        except WeightsError as error:
            raise NotLoaded(str(error)) from error
        return time.monotonic() - began


def _check_settings(url: str, settings: Any) -> None:
    for key in _QUANTIZING:
        if settings.get(key) is not None:
            raise WeightsError(_quantized(url, f"{key}={settings[key]}"))
    for key, why in _UNFIT.items():
        if settings.get(key) not in (None, False, "off"):
            raise WeightsError(f"{url}: takes no weights while it runs with {key}: {why}")


def _shapes_of_unquantized(model: str) -> Shapes:
    """Read the shapes of the model's tensors. Raises WeightsError if that is not possible."""
    folder = local_folder(model)
    if folder is None:
        raise WeightsError(
            f"{model}: is not on this host, so no version can be compared with it; SGLang would take any"
        )
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise WeightsError(f"{folder}: has no readable config.json: {error}") from error
    if "quantization_config" in config or "compression_config" in config:
        raise WeightsError(_quantized(model, "config.json"))
    return shapes_of(Checkpoint.of(folder))


def _quantized(who: str, says: str) -> str:
    return (
        f"{who}: the engine serves quantized weights ({says}), which may be loaded wrongly while it runs;"
        " let it serve the model without quantization"
    )
