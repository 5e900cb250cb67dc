"""Some episodes of a rollout as a table, for whoever records a run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SampleTable:
    """Some episodes of a line's rollout, for a table."""

    name: str
    columns: tuple[str, ...]
    rows: list[list[object]]
