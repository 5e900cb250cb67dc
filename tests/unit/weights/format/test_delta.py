"""A delta gives back every bit, is read only for its layout, and covers every byte once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.errors import WeightsError
from rl_agent.weights.format.delta import blocks_of, decode_delta, encode_delta
from rl_agent.weights.format.dtypes import WIDTH_OF
from rl_agent.weights.format.manifest import lay_out
from rl_agent.weights.store.store import DELTA, FULL
from tests.unit.weights.format.test_manifest import SPECS
from tests.unit.weights.weight_versions import publish_steps, with_delta


def test_a_small_step_is_a_small_delta_that_gives_the_same_bits(tmp_path):
    with publish_steps(tmp_path, 2, rows=3000) as store, store.hold(1) as old, store.hold(2) as new:
        assert new.manifest.delta.base_digest == old.manifest.digest
        assert new.manifest.delta.blob.size_bytes < 0.1 * new.manifest.full.size_bytes
        assert with_delta(new.map(DELTA), old.map(FULL), new.manifest.tensors) == new.map(FULL)


def _unused(start, content):
    raise AssertionError("wrote a part of a delta that is none")


def test_a_delta_of_another_layout_is_refused(tmp_path):
    with publish_steps(tmp_path, 2) as store, store.hold(1) as old, store.hold(2) as new:
        blob = bytes(new.map(DELTA))
        for damaged in (b"", blob[:-1], b"XXXX" + blob[4:], blob[:12] + b"\x01\0\0\0" + blob[16:]):
            with pytest.raises(WeightsError, match="delta: "):
                decode_delta(memoryview(damaged), old.map(FULL), _unused, new.manifest.tensors, threads=2)


def test_encoding_stops_at_its_limit(tmp_path):
    with publish_steps(tmp_path, 2) as store, store.hold(1) as old, store.hold(2) as new:
        parts = old.map(FULL), new.map(FULL), new.manifest.tensors
        assert encode_delta(*parts, block_bytes=1024, threads=2, limit_bytes=100) is None


@given(SPECS, st.sampled_from([64, 128, 4096]))
def test_blocks_cover_every_byte_once_and_hold_values_of_one_width(specs, block_bytes):
    layout = lay_out(specs)
    blocks = blocks_of(layout.tensors, block_bytes)
    assert [start for start, _, _ in blocks] == [0, *(end for _, end, _ in blocks)][: len(blocks)]
    assert (blocks[-1][1] if blocks else 0) == layout.size_bytes
    for tensor in layout.tensors:
        inside = {
            width
            for start, end, width in blocks
            if start < tensor.start + tensor.size_bytes and tensor.start < end
        }
        assert inside <= {WIDTH_OF[tensor.dtype]}
