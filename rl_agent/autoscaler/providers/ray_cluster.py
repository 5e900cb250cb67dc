"""The provider `ray`: an engine is a detached, named actor of a Ray cluster, placed by the GPUs it asks for.

It runs under the cluster's own interpreter (`--provider-python`), for Ray speaks to its own version. Actors
are named KIND/NAME in the settings' namespace, so the cluster itself remembers what runs. An actor that waits
for room is pending, which is what the cluster's autoscaler brings nodes for; nothing is requested beside it.
"""

import asyncio
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_agent.autoscaler.providers import ray_guard, ray_machine
from rl_agent.autoscaler.providers.command import words_of
from rl_agent.pool.demand.records import EngineKind, MachineState, ProviderError, RentedMachine

ANSWER_S = 2.0
"""Wait for answers of actors; one that has none has not begun."""
CALL_S = 20.0


class RayProvider:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._connecting = asyncio.Lock()
        self._begun: set[str] = set()
        """Machines that have answered this process."""
        self._started: set[str] = set()
        """Machines that this process started; of another one it does not know whether it has begun."""
        self._stopped_at: dict[str, float] = {}

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
                    logging_level="error",  # it warns each time that this is not the main thread
                )
            except (ImportError, ConnectionError, RuntimeError, ValueError) as error:
                raise ProviderError(self._refusal(error)) from error

    def _refusal(self, error: Exception) -> str:
        """Say in one line why there is no connection."""
        address = self._settings["address"]
        if isinstance(error, ImportError):
            return f"{sys.executable} cannot connect to {address}; ray:// needs ray[client]: {error}"
        if "version" in str(error).lower():
            return f"--provider-python {sys.executable}: expected the cluster's versions of both: {error}"
        return f"address={address}: {error}"

    def _start(self, name: str, kind: EngineKind) -> None:
        import ray

        if name in self._actors(name):
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
        ).remote(
            Path(ray_guard.__file__).read_text(encoding="utf-8"),
            words,
            self._settings["drain_s"],
            self._settings["log"].replace("{name}", name),
        )
        self._started.add(name)

    def _stop(self, name: str) -> None:
        import ray

        _, actor = self._actors(name).get(name, ("", None))
        if actor is None:
            return
        # The call stays with an actor that is slow. Killing one is a drain too, by its guard, but frees its
        # GPUs before the worker has left them.
        answer = actor.leave_pool.remote()
        if ray.wait([answer], timeout=ANSWER_S)[0]:
            try:
                ray.get(answer, timeout=CALL_S)
            except ray.exceptions.ActorUnavailableError as error:
                raise ProviderError(
                    f"{name}: its node does not answer now, so the machine was not told"
                ) from error
            except ray.exceptions.RayActorError:  # it has ended
                pass
            return
        first = self._stopped_at.setdefault(name, time.monotonic())
        has_not_begun = name in self._started and name not in self._begun
        if has_not_begun or time.monotonic() - first > self._settings["drain_s"]:
            ray.kill(actor)

    def _machines(self) -> list[RentedMachine]:
        import ray

        actors, machines = self._actors(), []
        answers = {name: actor.is_leaving_pool.remote() for name, (_, actor) in actors.items()}
        answered = (
            ray.wait(list(answers.values()), num_returns=len(answers), timeout=ANSWER_S)[0] if answers else []
        )
        for name, answer in answers.items():
            state = MachineState.RUNNING if name in self._begun else MachineState.PENDING
            if answer in answered:
                try:
                    state = MachineState.STOPPING if ray.get(answer, timeout=CALL_S) else MachineState.RUNNING
                    self._begun.add(name)
                except ray.exceptions.ActorUnavailableError:  # its node does not answer for now
                    state = MachineState.RUNNING
                except ray.exceptions.RayActorError:
                    continue
            machines.append(RentedMachine(name, actors[name][0], state))
        self._begun &= actors.keys()
        self._started &= actors.keys()
        self._stopped_at = {name: at for name, at in self._stopped_at.items() if name in actors}
        return machines

    def _actors(self, name: str | None = None) -> dict[str, tuple[str, Any]]:
        """Return kind and actor of this fleet's machines, all or that of a name; others' are left out."""
        import ray
        from ray.util import list_named_actors

        form = re.compile(rf"([^/]*)/({re.escape(self._settings['fleet'])}-[0-9]+)")
        actors: dict[str, tuple[str, Any]] = {}
        for match in filter(None, map(form.fullmatch, list_named_actors())):
            if name not in (None, match[2]):
                continue
            try:
                actor = ray.get_actor(match[0])
            except ValueError:  # it has ended meanwhile
                continue
            if hasattr(actor, "is_leaving_pool") and hasattr(actor, "leave_pool"):
                actors[match[2]] = (match[1], actor)
        return actors

    def _resources(self, kind: str) -> dict[str, Any]:
        return dict(self._settings["resources"].get(kind, {"num_gpus": 1}))


def connect(settings: Mapping[str, Any]) -> RayProvider:
    return RayProvider(settings)
