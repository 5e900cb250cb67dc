"""Chooses the blobs that bring a receiver to a version with the fewest bytes. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rl_agent.weights.format.manifest import Manifest, same_layout


@dataclass(frozen=True, slots=True)
class Route:
    """A full transfer, or deltas from a version that is here."""

    target: Manifest
    deltas: tuple[Manifest, ...] = ()
    """Versions whose deltas are applied one after the other, the last one the target's; none: full."""

    @property
    def base_digest(self) -> str | None:
        """Digest of the version that the first delta is a difference from."""
        first = self.deltas[0].delta if self.deltas else None
        return first.base_digest if first else None

    @property
    def size_bytes(self) -> int:
        if not self.deltas:
            return self.target.full.size_bytes
        return sum(m.delta.blob.size_bytes for m in self.deltas if m.delta is not None)


def choose_route(chain: Sequence[Manifest], here: Collection[str], *, max_deltas: int) -> Route:
    """Choose the route to `chain[0]`, the newest; each next manifest is of the base of the one before.

    `here`: digests of the versions that the receiver has. A chain of deltas is taken only if it is no longer
    than `max_deltas`, every link fits by content and layout, and it is smaller than the full version.
    """
    target = chain[0]
    deltas: list[Manifest] = []
    for position, manifest in enumerate(chain[:max_deltas]):
        is_linked = position == 0 or _is_base(chain[position - 1], manifest)
        if manifest.delta is None or not is_linked or not same_layout(manifest, target):
            break
        deltas.insert(0, manifest)
        if manifest.delta.base_digest in here:
            route = Route(target, tuple(deltas))
            return route if route.size_bytes < target.full.size_bytes else Route(target)
    return Route(target)


def _is_base(manifest: Manifest, base: Manifest) -> bool:
    return manifest.delta is not None and manifest.delta.base_digest == base.digest
