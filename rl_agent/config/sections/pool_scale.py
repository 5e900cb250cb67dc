"""Configuration of `pool.scale`: which kinds of engines may be asked for, and how many are wanted."""

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from rl_agent.config.sections.base import MAX_SECONDS, Above0, Count, NotNegative, Seconds, Section


class EngineKindConfig(Section):
    """A kind of engine that may be asked for."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    price_per_hour: NotNegative
    min_engines: Count
    max_engines: Annotated[int, Field(ge=1, le=4096)]
    start_s: Seconds

    @model_validator(mode="after")
    def _has_a_range(self) -> Self:
        if self.min_engines > self.max_engines:
            reason = f"min_engines={self.min_engines} is above max_engines={self.max_engines}"
            raise PydanticCustomError("no_range", "{reason}", {"reason": reason})
        return self


class PoolScaleConfig(Section):
    """The number of engines of each kind that a pool wants."""

    kinds: tuple[EngineKindConfig, ...]
    interval_s: Seconds
    max_dollars_per_hour: Above0 | None
    max_dollars_per_run: Above0 | None
    waiting_share: Annotated[float, Field(gt=0, lt=1)]
    finish_within_s: Seconds
    raise_after_s: Annotated[float, Field(ge=0, le=MAX_SECONDS)]
    lower_after_s: Seconds

    @model_validator(mode="after")
    def _names_each_kind_once(self) -> Self:
        names = [kind.name for kind in self.kinds]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise PydanticCustomError("twice", "{name} is named twice", {"name": twice[0]})
        return self
