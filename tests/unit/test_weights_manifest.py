"""A manifest says exactly one thing, and one that says anything else is refused."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.errors import WeightsError
from rl_agent.weights.checksums import digest
from rl_agent.weights.delta import blocks_of
from rl_agent.weights.dtypes import WIDTH_OF
from rl_agent.weights.manifest import (
    ALIGNMENT,
    Blob,
    Manifest,
    TensorSpec,
    content_digest,
    dump_manifest,
    lay_out,
    make_manifest,
    parse_manifest,
)

SPECS = st.dictionaries(
    st.text("abc.", min_size=1, max_size=4),
    st.tuples(st.sampled_from(sorted(WIDTH_OF)), st.lists(st.integers(0, 9), max_size=3)),
    max_size=8,
).map(lambda found: [TensorSpec(name, dtype, tuple(shape)) for name, (dtype, shape) in found.items()])


def manifest() -> Manifest:
    layout = lay_out([TensorSpec("a", "BF16", (3, 5)), TensorSpec("b", "F32", (4,))])
    blob = Blob(size_bytes=layout.size_bytes, piece_bytes=100, digests=(digest(b"1"), digest(b"2")))
    return make_manifest(3, layout, {"c": "a"}, blob)


def with_changes(**changes: object) -> bytes:
    """A manifest whose digest fits what it says."""
    record = json.loads(dump_manifest(manifest())) | changes
    loose = Manifest.model_construct(**record)
    full = Blob.model_validate(record["full"])
    tensors = Manifest.model_validate(record).tensors
    record["digest"] = content_digest(tensors, loose.aliases, full)
    return json.dumps(record).encode()


@given(SPECS)
def test_tensors_are_aligned_and_do_not_overlap_whatever_the_order(specs):
    layout = lay_out(specs)
    assert lay_out(reversed(specs)) == layout
    end = 0
    for tensor in layout.tensors:
        assert tensor.start % ALIGNMENT == 0
        assert tensor.start >= end
        end = tensor.start + tensor.size_bytes
    assert end <= layout.size_bytes


@given(SPECS, st.sampled_from([64, 128, 4096]))
def test_blocks_cover_every_byte_once_and_hold_values_of_one_width(specs, block_bytes):
    layout = lay_out(specs)
    blocks = blocks_of(layout.tensors, layout.size_bytes, block_bytes)
    assert [start for start, _, _ in blocks] == [0, *(end for _, end, _ in blocks)][: len(blocks)]
    assert (blocks[-1][1] if blocks else 0) == layout.size_bytes
    for tensor in layout.tensors:
        inside = {
            width
            for start, end, width in blocks
            if start < tensor.start + tensor.size_bytes and tensor.start < end
        }
        assert inside <= {WIDTH_OF[tensor.dtype]}


def test_a_manifest_survives_being_written_and_read():
    assert parse_manifest(dump_manifest(manifest()), expected_digest=manifest().digest) == manifest()


def test_the_same_content_has_the_same_digest_under_another_version_number():
    renumbered = manifest().model_copy(update={"weight_version": 9})
    assert parse_manifest(dump_manifest(renumbered)).digest == manifest().digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "manifest"),
        (dump_manifest(manifest()).replace(b'"weight_version":3', b'"weight_version":-3'), "greater than"),
        (dump_manifest(manifest()).replace(b'"c":"a"', b'"d":"a"'), "does not match its digest"),
        (dump_manifest(manifest()).replace(b'"format":1', b'"format":2'), "format"),
        (with_changes(aliases={"c": "missing"}), "cannot be another name"),
        (with_changes(aliases={"a": "b"}), "cannot be another name"),
        (with_changes(tensors=json.loads(dump_manifest(manifest()))["tensors"][::-1]), "laid out"),
        (
            with_changes(
                tensors=[{"name": "a", "dtype": "BF16", "shape": [2**40, 2**40], "start": 0, "size_bytes": 2}]
            ),
            "do not fit",
        ),
        (
            with_changes(full={"size_bytes": 128, "piece_bytes": 10, "digests": [digest(b"")]}),
            "number of pieces",
        ),
    ],
)
def test_a_manifest_that_is_damaged_or_contradicts_itself_is_refused(text, message):
    with pytest.raises(WeightsError, match=message):
        parse_manifest(text)


def test_a_manifest_takes_no_more_memory_than_it_is_long_whatever_it_says_of_its_difference():
    text = json.loads(dump_manifest(manifest()))
    blob = {"size_bytes": 2**20, "piece_bytes": 1, "digests": []}  # and it may say 2**47
    text["delta"] = {"base_version": 2, "base_digest": digest(b""), "blob": blob}
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError, match="number of pieces"):
            parse_manifest(json.dumps(text).encode())
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_manifest_other_than_the_announced_one_is_refused():
    with pytest.raises(WeightsError, match="not the announced"):
        parse_manifest(dump_manifest(manifest()), expected_digest=digest(b"another"))


def test_types_that_have_no_bytes_of_their_own_are_refused():
    with pytest.raises(WeightsError, match="cannot send tensors of type F4"):
        lay_out([TensorSpec("a", "F4", (2,))])
