"""Reports of an engine's worker; the bounds of each field are checked when it comes in."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field
from yarl import URL


def _one_line(text: str) -> str:
    """Return a reason as one printable line for the log."""
    return "".join(one if one.isprintable() else " " for one in text)


def _address(text: str) -> str:
    """Return the address. Raises ValueError if it is not tcp://HOST:PORT."""
    if not URL(text).host or URL(text).port is None:
        raise ValueError("expected tcp://HOST:PORT")
    return text


Words = Annotated[str, Field(max_length=500), AfterValidator(_one_line)]
WeightVersion = Annotated[int, Field(ge=0, lt=2**48)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
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
class WeightsReport:
    """A worker's report on the weights in its engine."""

    __pydantic_config__ = STRICT
    weight_version: WeightVersion | None = None
    """None: the weights of the folder it was started on."""
    digest: Digest | None = None
    source: SourceAddress | None = None
    """Where this host gives on the versions it has."""
    is_fetching: bool = False
    fetched_version: WeightVersion | None = None
    """Here, and loaded once the engine may take it (see `single_version`)."""
    problem: Words = ""
    """Why it has not got the wanted version; empty while nothing went wrong."""


NO_WEIGHTS = WeightsReport()
"""Of an engine that was just started, or that has no worker."""
