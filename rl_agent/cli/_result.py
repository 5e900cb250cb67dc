"""A verb returns its exit status and named fields to `run.sh`.

A verb returns a `VerbResult`, or its exit status alone. On a command line the fields are printed as lines of
`name=value`; `node` sends them to bash, which reads them into an associative array (`ask`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class VerbResult:
    """The result of one verb. Names are bash variable names; a value may hold anything but NUL."""

    fields: Mapping[str, str | int] = field(default_factory=dict)
    status: int = 0
    problem: str = ""
    """The line that a person was shown; bash does not receive it."""

    def words(self) -> list[str]:
        """Return the fields as `name=value`."""
        return [f"{name}={value}" for name, value in self.fields.items()]
