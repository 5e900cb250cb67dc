"""The provider `skypilot`: a cluster of SkyPilot for each machine, by its Python API.

It works in SkyPilot's own environment (`--provider-python`), whose pins are not this project's, and needs
nothing but the standard library beside it. SkyPilot's API server knows all there is to know: clusters, their
tasks, and requests that are under way.
"""

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from rl_agent.pool.scale.records import EngineKind, MachineState, ProviderError, RentedMachine

EARLY_POLLS = 10
POLL_S = 1.0
STATES = {"INIT": MachineState.PENDING, "PENDING": MachineState.PENDING, "UP": MachineState.RUNNING}
"""All others end or rest: STOPPED, AUTOSTOPPING."""
_UNFINISHED = frozenset({"PENDING", "WAITING", "RUNNING"})
_KIND = re.compile(r"RL_AGENT_KIND: ['\"]?([^'\"\n]*)")


class SkypilotProvider:
    def __init__(self, settings: Mapping[str, Any], sky: Any) -> None:
        self._settings = settings
        self._sky = sky

    async def start(self, name: str, kind: EngineKind) -> None:
        """Ask for a cluster; one that fails within seconds, as for lack of a cloud, is an error."""
        if await self._clusters(name) or await self._launches(name):
            return
        sky, settings = self._sky, self._settings
        task = sky.Task.from_yaml(str(settings["task"]))
        own = {"RL_AGENT_NAME": name, "RL_AGENT_KIND": kind.name, "RL_AGENT_MANAGER": settings["manager"]}
        task.update_envs({**settings["envs"], **own, "RL_AGENT_PRICE": f"{kind.price_per_hour:g}"})
        task.update_secrets({name: os.environ[name] for name in settings["secrets_from_environment"]})
        task.set_resources_override(dict(settings["kind_resources"].get(kind.name, {})))
        request = await self._call(sky.launch, task, cluster_name=name)
        for _ in range(EARLY_POLLS):
            found = await self._call(sky.api_status, [request])
            if not found or found[0].status not in _UNFINISHED:
                break
            await asyncio.sleep(POLL_S)
        if found and found[0].status == "FAILED":
            raise ProviderError(f"start: SkyPilot could not launch {name}: sky api logs {request}")

    async def stop(self, name: str) -> None:
        """End a cluster, whether it is up or being made, and wait until it has ended."""
        try:
            await self._result(self._sky.down, name)
        except self._sky.exceptions.ClusterDoesNotExist:
            for launch in await self._launches(name):
                await self._result(self._sky.api_cancel, [launch.request_id])

    async def machines(self) -> list[RentedMachine]:
        begin = f"{self._settings['fleet']}-"
        return [
            RentedMachine(one["name"], _kind(one), STATES.get(one["status"].value, MachineState.STOPPING))
            for one in await self._clusters()
            if one["name"].startswith(begin)
        ]

    async def _clusters(self, *names: str) -> list[Any]:
        """Return clusters, those of spot machines as their cloud sees them now."""
        refresh = self._sky.StatusRefreshMode.AUTO
        found: list[Any] = await self._result(self._sky.status, list(names) or None, refresh=refresh)
        return found

    async def _launches(self, name: str) -> list[Any]:
        """Return the requests for a cluster that are under way."""
        found = await self._call(self._sky.api_status, cluster_name=name)
        return [one for one in found if one.status in _UNFINISHED and "launch" in one.name]

    async def _result(self, call: Callable[..., Any], *words: Any, **more: Any) -> Any:
        return await self._call(self._sky.get, await self._call(call, *words, **more))

    async def _call(self, call: Callable[..., Any], *words: Any, **more: Any) -> Any:
        try:
            async with asyncio.timeout(self._settings["call_timeout_s"]):
                return await asyncio.to_thread(call, *words, **more)
        except TimeoutError as error:
            raise ProviderError(f"SkyPilot does not answer {call.__name__}") from error


def _kind(cluster: Mapping[str, Any]) -> str:
    found = _KIND.search(cluster["last_creation_yaml"] or "")
    return found[1].strip() if found else ""


def connect(settings: Mapping[str, Any]) -> SkypilotProvider:
    import sky

    return SkypilotProvider(settings, sky)
