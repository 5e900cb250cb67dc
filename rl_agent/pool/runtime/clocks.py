"""Deadlines that outlive a manager, by two clocks, of which nobody sets one."""

import time
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rl_agent.system.processes import boot_id

Finite = Annotated[float, Field(allow_inf_nan=False)]
Stamp = tuple[Finite, str, Finite]
"""A deadline in the journal: by the wall clock; a boot's id, and the deadline by the clock of that boot."""


@dataclass(frozen=True, slots=True)
class ClockOffsets:
    """The beginnings of other clocks by the pool's clock, which begins anew with each process."""

    epoch: float
    """The wall clock, which outlives the host's restart, and which anybody sets."""
    boot: float
    """The clock of `boot_id`, which outlives a process, and which nobody sets."""
    boot_id: str

    @classmethod
    def of(cls, now: float) -> "ClockOffsets":
        """Read the clocks."""
        return cls(now - time.time(), now - time.monotonic(), boot_id())

    def stamp(self, deadline: float) -> Stamp:
        """Return a deadline by the two clocks that continue after the manager's end."""
        return deadline - self.epoch, self.boot_id, deadline - self.boot

    def deadline(self, stamp: Stamp) -> float:
        """Return a stamped deadline by the pool's clock; by the wall clock only if the host was restarted."""
        by_wall, boot, by_boot = stamp
        return by_boot + self.boot if boot and boot == self.boot_id else by_wall + self.epoch
