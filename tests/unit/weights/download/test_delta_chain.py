"""A receiver takes the fewest bytes that lead to the version, by content and not by number."""

import pytest

from rl_agent.weights.download.delta_chain import choose_route
from rl_agent.weights.format.checksums import digest
from rl_agent.weights.format.manifest import Blob, Delta, Manifest, TensorSpec, lay_out, make_manifest


def version(number: int, *, base: Manifest | None = None, size_bytes: int = 100, rows: int = 500) -> Manifest:
    layout = lay_out([TensorSpec("a", "BF16", (rows,))])
    full = Blob(size_bytes=layout.size_bytes, piece_bytes=2**20, digests=(digest(bytes([number])),))
    blob = Blob(size_bytes=size_bytes, piece_bytes=2**20, digests=(digest(b""),))
    delta = Delta(base_version=base.weight_version, base_digest=base.digest, blob=blob) if base else None
    return make_manifest(number, layout, {}, full, delta)


ONE = version(1)
TWO = version(2, base=ONE)
THREE = version(3, base=TWO)


@pytest.mark.parametrize(
    ("chain", "here", "expected"),
    [
        ([THREE, TWO], [TWO], [3]),
        ([THREE, TWO], [ONE], [2, 3]),
        ([THREE, TWO], [ONE, TWO], [3]),
        ([THREE, TWO], [], []),
        ([THREE], [ONE], []),
        ([THREE, TWO, ONE], [version(9)], []),
        ([version(3), TWO], [TWO], []),
        ([version(3, base=TWO, rows=600), TWO], [ONE], []),
        ([THREE, version(9, base=ONE)], [ONE], []),
        ([version(3, base=TWO, size_bytes=600), TWO], [ONE], [2, 3]),
        ([version(3, base=TWO, size_bytes=1000), TWO], [ONE], []),
        ([version(3, base=TWO, size_bytes=1024), TWO], [TWO], []),
    ],
)
def test_deltas_are_taken_if_each_fits_the_one_before_and_is_smaller(chain, here, expected):
    route = choose_route(chain, {manifest.digest for manifest in here}, max_deltas=4)
    assert route.target == chain[0]
    assert [manifest.weight_version for manifest in route.deltas] == expected


@pytest.mark.parametrize(("here", "most", "deltas"), [(ONE, 1, ()), (TWO, 1, (THREE,)), (TWO, 0, ())])
def test_a_chain_is_no_longer_than_it_may_be(here, most, deltas):
    assert choose_route([THREE, TWO], {here.digest}, max_deltas=most).deltas == deltas
