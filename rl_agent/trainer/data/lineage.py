"""How far a weight version is behind another: counted in iterations, of which each makes one version.

Numbers do not tell. They have gaps where a pool knew a later one; and a trainer that was killed after it
published makes the iterations since its checkpoint once more, the last of them under a new number: its old
number and its new one stand for the same iteration. A training that was set back on purpose has nothing to do
with the versions that it had made since.
"""

from collections.abc import Mapping


class Lineage:
    """Which iteration made each weight version of one trainer; every rank keeps an equal one."""

    def __init__(self, made_in: Mapping[int, int | None] | None = None) -> None:
        """`made_in`: the iteration of each version that engines were told of; None: it was given up."""
        self._made_in = dict(made_in or {})

    def note(self, version: int, iteration: int) -> None:
        self._made_in[version] = iteration

    @property
    def newest_iteration(self) -> int:
        """The last one whose version is known; 0: none."""
        return max((made_in for made_in in self._made_in.values() if made_in is not None), default=0)

    def version_of(self, iteration: int) -> int | None:
        """The newest version of this iteration."""
        return max((v for v, made_in in self._made_in.items() if made_in == iteration), default=None)

    def age(self, version: int, *, at: int) -> int | None:
        """How many iterations it is behind the version `at`; None: it was given up."""
        made_in, now = self._iteration(version), self._iteration(at)
        return None if made_in is None or now is None else now - made_in

    def _iteration(self, version: int) -> int | None:
        """Where nothing is known of a version, each number counts as one iteration."""
        if version in self._made_in:
            return self._made_in[version]
        known = {v: made_in for v, made_in in self._made_in.items() if made_in is not None}
        if not known:
            return version
        nearest = max((v for v in known if v < version), default=min(known))
        return known[nearest] + version - nearest
