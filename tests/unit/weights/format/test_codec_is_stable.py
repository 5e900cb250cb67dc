"""A decoder written from docs/reference/weights-format.md alone reads what the codec writes."""

import struct

import pyarrow
from hypothesis import given

from rl_agent.weights.format.checksums import digest
from rl_agent.weights.format.codec import decode, encode
from rl_agent.weights.format.manifest import Blob, TensorSpec, lay_out, make_manifest
from tests.unit.weights.format.test_codec import steps


def decode_by_the_book(base: bytes, payload: bytes, width: int) -> bytes:
    mode, gap_bytes, planes, _, values, changes, large = struct.unpack_from("<BBBBIII", payload)
    position = 16

    def stream(size: int) -> bytes:
        nonlocal position
        (word,) = struct.unpack_from("<I", payload, position)
        length = word & 0x7FFFFFFF
        content = payload[position + 4 : position + 4 + length]
        position += 4 + length
        if word >> 31:
            content = pyarrow.decompress(content, size, "zstd", asbytes=True)
        assert len(content) == size
        return content

    def bits(content: bytes, count: int) -> list[int]:
        return [content[index // 8] >> (index % 8) & 1 for index in range(count)]

    def numbers(planes: int, count: int) -> list[int]:
        streams = [stream(count) for _ in range(planes)]
        return [sum(plane[index] << (8 * k) for k, plane in enumerate(streams)) for index in range(count)]

    if mode == 0:
        return base
    if mode == 1:
        return payload[16:]
    if mode == 2:
        places, place = [], -1
        for gap in numbers(gap_bytes, changes):
            place += gap + 1
            places.append(place)
    else:
        places = [index for index, bit in enumerate(bits(stream(-(-values // 8)), values)) if bit]
    signs = bits(stream(-(-changes // 8)), changes)
    flags = bits(stream(-(-changes // 8)), changes)
    rest = iter(numbers(planes, large))
    new = [int.from_bytes(base[index * width : (index + 1) * width], "little") for index in range(values)]
    for place, is_negative, is_large in zip(places, signs, flags, strict=True):
        size = next(rest) + 2 if is_large else 1
        new[place] = (new[place] + (-size if is_negative else size)) % 256**width
    return b"".join(value.to_bytes(width, "little") for value in new)


@given(steps(max_values=300))
def test_the_specification_is_enough_to_read_a_delta(step):
    width, base, new = step
    assert decode_by_the_book(base, encode(base, new, width), width) == new


def test_a_payload_written_by_hand_is_read_as_the_specification_says():
    base = bytes(range(12))
    written = bytes.fromhex(
        "02010100 06000000 02000000 01000000"  # gaps of one byte; 6 values, 2 changes, 1 large
        "02000000 0103 01000000 02 01000000 02 01000000 05"
    )
    target = bytearray(12)
    decode(memoryview(base), written, memoryview(target), 2)
    assert target == bytes([0, 1, 3, 3, 4, 5, 6, 7, 8, 9, 3, 11])


def test_a_version_has_the_digest_it_always_had():
    layout = lay_out(
        [TensorSpec("b", "BF16", (3,)), TensorSpec("a", "F32", (2, 2)), TensorSpec("ü", "I8", ())]
    )
    blob = Blob(
        size_bytes=layout.size_bytes, piece_bytes=64, digests=tuple(digest(bytes([n])) for n in range(3))
    )
    assert [(t.name, t.start) for t in layout.tensors] == [("a", 0), ("b", 64), ("ü", 128)]
    assert make_manifest(1, layout, {"c": "a"}, blob).digest == (
        "ddda62672a2932ea22ff508792df3aed1624439076557b4d4e3fd0accbd1b9ff"
    )
