"""The provider `ray`: an engine is a detached, named actor of a Ray cluster, placed by the GPUs it asks for.

It runs under the cluster's own interpreter (`--provider-python`), for Ray speaks to its own version. Actors
are named KIND/NAME in the settings' namespace, so the cluster itself remembers what runs; an actor that waits
for room is pending, and its resources are requested from the cluster's autoscaler.
"""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from rl_agent.pool.scale.providers import ray_machine
from rl_agent.pool.scale.providers.command import words_of
from rl_agent.pool.scale.records import EngineKind, MachineState, ProviderError, RentedMachine

ANSWER_S = 2.0
"""Wait for answers of actors; one that has none has not begun."""
CALL_S = 20.0


class RayProvider:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._connecting = asyncio.Lock()

    async def start(self, name: str, kind: EngineKind) -> None:
        await self._connected()
        await asyncio.to_thread(self._start, name, kind)

    async def stop(self, name: str) -> None:
        await self._connected()
        await asyncio.to_thread(self._stop, name)

    async def machines(self) -> list[RentedMachine]:
        await self._connected()
        return await asyncio.to_thread(self._machines)

    async def _connected(self) -> None:
        async with self._connecting:
            await asyncio.to_thread(self._connect)

    def _connect(self) -> None:
        try:
            import ray
        except ImportError as error:
            raise ProviderError(
                f"{sys.executable} has no ray; give --provider-python the one of the cluster: {error}"
            ) from error

        if not ray.is_initialized():
            ray.cloudpickle.register_pickle_by_value(ray_machine)
            try:
                ray.init(
                    address=self._settings["address"],
                    namespace=self._settings["namespace"],
                    log_to_driver=False,
                    logging_level="warning",
                )
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ProviderError(f"address={self._settings['address']}: {error}") from error

    def _start(self, name: str, kind: EngineKind) -> None:
        import ray

        if name in self._names():
            return
        fields = {
            "name": name,
            "kind": kind.name,
            "price": f"{kind.price_per_hour:g}",
            "manager": self._settings["manager"],
            "fleet": self._settings["fleet"],
        }
        words = words_of(self._settings["worker"], fields, is_shell=False)
        ray.remote(ray_machine.RayMachine).options(
            name=f"{kind.name}/{name}",
            lifetime="detached",
            max_restarts=0,
            **self._resources(kind.name),
        ).remote(words, self._settings["drain_s"], self._settings["log"].replace("{name}", name))
        self._request_resources()

    def _stop(self, name: str) -> None:
        import ray

        full = self._names().get(name)
        if full is None:
            return
        try:
            actor = ray.get_actor(full)
            told, _ = ray.wait([actor.leave.remote()], timeout=ANSWER_S)
            if not told:  # it waits for room, or its node does not answer
                ray.kill(actor)
        except ValueError:  # it has ended meanwhile
            pass
        self._request_resources()

    def _machines(self) -> list[RentedMachine]:
        import ray

        names, found, leaving = self._names(), [], {}
        for name, full in names.items():
            try:
                leaving[name] = ray.get_actor(full).is_leaving.remote()
            except ValueError:
                continue
        asked = list(leaving.values())
        answered = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)[0] if asked else []
        for name, answer in leaving.items():
            state = MachineState.PENDING
            if answer in answered:
                try:
                    state = MachineState.STOPPING if ray.get(answer, timeout=CALL_S) else MachineState.RUNNING
                except ray.exceptions.RayActorError:
                    continue
            found.append(RentedMachine(name, names[name].rpartition("/")[0], state))
        return found

    def _names(self) -> dict[str, str]:
        """Return this fleet's machines with the names of their actors."""
        from ray.util import list_named_actors

        prefix = self._settings["fleet"] + "-"
        names = {full.rpartition("/")[2]: full for full in list_named_actors()}
        return {name: full for name, full in names.items() if name.startswith(prefix)}

    def _resources(self, kind: str) -> dict[str, Any]:
        return dict(self._settings["resources"].get(kind, {"num_gpus": 1}))

    def _request_resources(self) -> None:
        """Let an autoscaler keep room for all that is asked for, and for no more."""
        from ray.autoscaler.sdk import request_resources

        bundles = []
        for full in self._names().values():
            wanted = self._resources(full.rpartition("/")[0])
            bundle = {"CPU": wanted.get("num_cpus", 0), "GPU": wanted.get("num_gpus", 0)}
            bundle |= wanted.get("resources", {})
            bundles.append({name: amount for name, amount in bundle.items() if amount})
        request_resources(bundles=[bundle for bundle in bundles if bundle])


def connect(settings: Mapping[str, Any]) -> RayProvider:
    return RayProvider(settings)
