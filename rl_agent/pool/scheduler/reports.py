"""Reports of an engine's worker; the bounds of each field are checked when it comes in."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field
from yarl import URL


def _one_line(text: str) -> str:
    """Return a reason as one printable line for the log."""
    return "".join(character if character.isprintable() else " " for character in text)


def _address(text: str) -> str:
    """Return the address. Raises ValueError if it is not tcp://HOST:PORT."""
    if not URL(text).host or URL(text).port is None:
        raise ValueError("expected tcp://HOST:PORT")
    return text


Words = Annotated[str, Field(max_length=500), AfterValidator(_one_line)]
WeightVersion = Annotated[int, Field(ge=0, lt=2**48)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Bytes = Annotated[int, Field(ge=0, lt=2**60)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SourceAddress = Annotated[
    str, Field(max_length=300, pattern=r"^tcp://[^\s/]+:[0-9]{1,5}$"), AfterValidator(_address)
]
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Load:
    """The load that an engine reports."""

    __pydantic_config__ = STRICT
    running: Count
    waiting: Count
    kv_use: Annotated[float, Field(ge=0, le=1)] = 0.0


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Bytes of weights that came to engines, by where from. What engines of a host share counts once."""

    __pydantic_config__ = STRICT
    trainer: Bytes = 0
    engines: Bytes = 0
    """The bytes from the hosts of other engines."""
    manager: Bytes = 0
    same_host: Bytes = 0
    """Shared with the store of a trainer on the same host."""

    def plus(self, other: "WeightBytes") -> "WeightBytes":
        """Return the sums."""
        return WeightBytes(
            self.trainer + other.trainer,
            self.engines + other.engines,
            self.manager + other.manager,
            self.same_host + other.same_host,
        )

    def since(self, before: "WeightBytes") -> "WeightBytes":
        """Return what came since then; nothing where a count went back."""
        return WeightBytes(
            max(0, self.trainer - before.trainer),
            max(0, self.engines - before.engines),
            max(0, self.manager - before.manager),
            max(0, self.same_host - before.same_host),
        )


NO_BYTES = WeightBytes()


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """A worker's report on the weights in its engine."""

    __pydantic_config__ = STRICT
    weight_version: WeightVersion | None = None
    """None: the weights of the folder it was started on."""
    digest: Digest | None = None
    source: SourceAddress | None = None
    """The address where this host gives on the versions it has."""
    is_fetching: bool = False
    fetched_version: WeightVersion | None = None
    """Here, and loaded once the engine may take it (see `single_version`)."""
    problem: Words = ""
    """The reason that it has not got the wanted version; empty while nothing went wrong."""
    received: WeightBytes = NO_BYTES
    """The bytes received since the worker started."""


NO_WEIGHTS = WeightsReport()
"""The report of an engine that was just started, or that has no worker."""
