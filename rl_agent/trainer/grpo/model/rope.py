"""Rotary angles that depend on the length of a sequence: dynamic and long RoPE."""

from collections.abc import Mapping
from typing import Any


def short_context(config: Mapping[str, Any]) -> int | None:
    """Return up to how many tokens angles do not depend on the length of a sequence; None: they never do."""
    lengths = [length_of(angles, config) for angles in angles_of(config).values()]
    return min((length for length in lengths if length is not None), default=None)


def angles_of(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return settings of the angles by the kind of layer; by "" where all layers have the same."""
    angles = config.get("rope_parameters") or {}
    by_kind = {kind: value for kind, value in angles.items() if isinstance(value, Mapping)}
    return by_kind or {"": angles}


def length_of(angles: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    """Return the same for the angles of one kind of layer."""
    if angles.get("rope_type") == "dynamic":
        return int(config["max_position_embeddings"])
    if angles.get("rope_type") == "longrope":
        return int(angles.get("original_max_position_embeddings") or config["max_position_embeddings"])
    return None
