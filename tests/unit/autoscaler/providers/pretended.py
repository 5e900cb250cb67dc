"""A provider for `remote_serve` that keeps its machines in memory and misbehaves by their names."""

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any

from rl_agent.pool.demand.records import EngineKind, MachineState, ProviderError, RentedMachine


class Pretended:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.state = MachineState(settings["state"])
        self.known: dict[str, RentedMachine] = {}

    async def start(self, name: str, kind: EngineKind) -> None:
        print("a library that prints where it likes")
        if name == "no-quota":
            raise ProviderError("the quota is used up\nand this is a second line")
        if name == "whose":
            raise ProviderError(f"it joins {self.settings['manager']}")
        if name == "bug":
            raise KeyError(name)
        if name == "dies":
            os._exit(3)
        if name == "hangs":
            await asyncio.Event().wait()
        self.known[name] = RentedMachine(name, kind.name, self.state)

    async def stop(self, name: str) -> None:
        self.known.pop(name, None)

    async def machines(self) -> list[RentedMachine]:
        print(f"{len(self.known)} machines", file=sys.stdout)
        return list(self.known.values())


def connect(settings: Mapping[str, Any]) -> Pretended:
    return Pretended(settings)
