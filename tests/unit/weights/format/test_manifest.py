"""A manifest says exactly one thing, and one that says anything else is refused."""

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rl_agent.errors import WeightsError
from rl_agent.weights.format.checksums import digest
from rl_agent.weights.format.dtypes import WIDTH_OF
from rl_agent.weights.format.manifest import (
    ALIGNMENT,
    Blob,
    Delta,
    Manifest,
    TensorSpec,
    content_digest,
    dump_manifest,
    lay_out,
    make_manifest,
    parse_manifest,
)
from rl_agent.weights.publish.publish import choose_piece_bytes
from tests.unit.weights.weight_versions import in_a_mebibyte

SPECS = st.dictionaries(
    st.text("abc.", min_size=1, max_size=4),
    st.tuples(st.sampled_from(sorted(WIDTH_OF)), st.lists(st.integers(0, 9), max_size=3)),
    max_size=8,
).map(lambda entries: [TensorSpec(name, dtype, tuple(shape)) for name, (dtype, shape) in entries.items()])


def manifest() -> Manifest:
    layout = lay_out([TensorSpec("a", "BF16", (3, 5)), TensorSpec("b", "F32", (4,))])
    blob = Blob(size_bytes=layout.size_bytes, piece_bytes=100, digests=(digest(b"1"), digest(b"2")))
    return make_manifest(3, layout, {"c": "a"}, blob)


RECORD = json.loads(dump_manifest(manifest()))


def with_changes(**changes: object) -> bytes:
    """A manifest whose digest fits what it says."""
    record = RECORD | changes
    changed = msgspec.convert(record, Manifest)
    record["digest"] = content_digest(changed.tensors, changed.aliases, changed.full)
    return json.dumps(record).encode()


def entry(name: str = "a", dtype: str = "U8", shape: Sequence[int] = (), size_bytes: int = 1) -> dict:
    return {"name": name, "dtype": dtype, "shape": shape, "start": 0, "size_bytes": size_bytes}


def full(size_bytes: int, piece_bytes: int, digests: list[str]) -> dict:
    return {"size_bytes": size_bytes, "piece_bytes": piece_bytes, "digests": digests}


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


def test_a_manifest_survives_being_written_and_read():
    assert parse_manifest(dump_manifest(manifest()), expected_digest=manifest().digest) == manifest()


def test_the_same_content_has_the_same_digest_under_another_version_number():
    renumbered = replace(manifest(), weight_version=9)
    assert parse_manifest(dump_manifest(renumbered)).digest == manifest().digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "manifest"),
        (dump_manifest(manifest()).replace(b'"weight_version":3', b'"weight_version":-3'), "weight_version"),
        (dump_manifest(manifest()).replace(b'"c":"a"', b'"d":"a"'), "does not match its digest"),
        (dump_manifest(manifest()).replace(b'"format":1', b'"format":2'), "format"),
        (with_changes(aliases={"c": "missing"}), "cannot be another name"),
        (with_changes(aliases={"a": "b"}), "cannot be another name"),
        (with_changes(tensors=RECORD["tensors"][::-1]), "laid out"),
        (with_changes(tensors=RECORD["tensors"][:1] * 2), "b: is there twice"),
        (with_changes(tensors=[entry(dtype="BF16", shape=[2**40, 2**40], size_bytes=2)]), "do not fit"),
        (with_changes(full=full(128, 10, [digest(b"")])), "number of pieces"),
    ],
)
def test_a_manifest_that_is_damaged_or_contradicts_itself_is_refused(text, message):
    with pytest.raises(WeightsError, match=message):
        parse_manifest(text)


def test_a_manifest_takes_no_more_memory_than_its_length():
    blob = full(2**20, 1, [])  # and it may say 2**47
    text = RECORD | {"delta": {"base_version": 2, "base_digest": digest(b""), "blob": blob}}
    with in_a_mebibyte(), pytest.raises(WeightsError, match="number of pieces"):
        parse_manifest(json.dumps(text).encode())


def test_a_manifest_other_than_the_announced_one_is_refused():
    with pytest.raises(WeightsError, match="not the announced"):
        parse_manifest(dump_manifest(manifest()), expected_digest=digest(b"another"))


def test_types_that_have_no_bytes_of_their_own_are_refused():
    with pytest.raises(WeightsError, match="cannot send tensors of type F4"):
        lay_out([TensorSpec("a", "F4", (2,))])


def unchecked(**changes: object) -> bytes:
    """A manifest whose parts agree with nothing."""
    return json.dumps(RECORD | {"tensors": [entry()], "aliases": {}} | changes).encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (with_changes(tensors=[]).replace(b'"tensors": []', b'"tensors": [' + b"[" * 500), "manifest"),
        (unchecked(tensors=[entry(shape=[1] * 10**5)]), "<= 16"),
        (unchecked(tensors=[entry("a" * 10**5)]), "<= 1024"),
        (unchecked(full=full(2**40, 1, ["0" * 64] * (2**18 + 1))), "<= 262144"),
        (b" " * (2**25 + 1), "33,554,433 bytes of at most"),
    ],
)
def test_manifests_that_cost_more_than_their_length_are_refused(text, message):
    with pytest.raises(WeightsError, match=message) as caught:
        parse_manifest(text)
    assert len(str(caught.value)) < 400


def test_a_mixture_of_tens_of_thousands_of_experts_fits_any_piece_size():
    """A manifest by its sizes: 60 layers of 384 experts, three matrices each: 2 TB in 69,120 tensors."""
    names = (
        f"model.layers.{layer}.mlp.experts.{expert}.{matrix}_proj.weight"
        for layer in range(60)
        for expert in range(384)
        for matrix in ("gate", "up", "down")
    )
    layout = lay_out(TensorSpec(name, "BF16", (2048, 7168)) for name in names)
    piece_bytes = choose_piece_bytes(layout.size_bytes, 2**20)
    digests = (digest(b"1"),) * -(-layout.size_bytes // piece_bytes)
    blob = Blob(size_bytes=layout.size_bytes, piece_bytes=piece_bytes, digests=digests)
    delta = Delta(base_version=1, base_digest=digest(b"2"), blob=blob)  # a change of every value
    text = dump_manifest(make_manifest(2, layout, {}, blob, delta))
    assert len(parse_manifest(text).tensors) == 69_120


@given(st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=4))
def test_the_content_digest_is_that_of_plain_json_whatever_the_names(aliases):
    layout = lay_out([TensorSpec("ü\n", "BF16", (3, 5))])
    blob = Blob(size_bytes=layout.size_bytes, piece_bytes=100, digests=(digest(b"1"),))
    content = [
        1,
        [[t.name, t.dtype, list(t.shape), t.start, t.size_bytes] for t in layout.tensors],
        sorted(aliases.items()),
        [blob.size_bytes, blob.piece_bytes, list(blob.digests)],
    ]
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
    assert content_digest(layout.tensors, aliases, blob) == digest(text)
