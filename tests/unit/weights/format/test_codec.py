"""The delta codec gives back every bit, and believes no payload."""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.errors import WeightsError
from rl_agent.weights.format import codec

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@st.composite
def steps(draw, max_values: int = 700):
    """(width, block, next block): unchanged, few, many or all values changed, by little or by anything."""
    width = draw(st.sampled_from([1, 2, 4, 8]))
    values = draw(st.integers(0, max_values))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    base = random.bytes(values * width)
    old = np.frombuffer(base, UNSIGNED[width])
    share = draw(st.sampled_from([0.0, 0.01, 0.1, 0.19, 0.21, 0.7, 1.0]))
    reach = draw(st.sampled_from([1, 3, 300, 2**64]))
    by = random.integers(0, min(reach, 2 ** (8 * width)) - 1, values, np.uint64, endpoint=True)
    by[random.random(values) >= share] = 0
    new = old + by.astype(old.dtype) - (by.astype(old.dtype) << 1) * random.integers(0, 2, values, old.dtype)
    return width, base, new.tobytes()


def round_trip(base: bytes, new: bytes, width: int) -> bytes:
    target = bytearray(len(base))
    codec.decode(memoryview(base), codec.encode(base, new, width), memoryview(target), width)
    return bytes(target)


@given(steps())
def test_decoding_gives_back_every_bit(step):
    width, base, new = step
    assert round_trip(base, new, width) == new


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2],
)
def test_values_that_compare_strangely_keep_their_bits(dtype):
    """Zeros of both signs, denormals, infinities and NaNs with and without a payload, each to each."""
    width = dtype.itemsize
    kinds = 2 ** (8 * width - 1) - 1
    infinite = torch.tensor([float("inf")]).to(dtype).view(torch.uint8).numpy()
    infinity = int(np.frombuffer(infinite, f"<u{width}")[0])
    strange = [0, 1, 2, infinity - 1, infinity, infinity + 1, kinds - 1, kinds]
    strange = [bits & kinds for bits in strange]
    strange += [bits + kinds + 1 for bits in strange]
    base = np.array([a for a in strange for _ in strange], UNSIGNED[width]).tobytes()
    new = np.array([b for _ in strange for b in strange], UNSIGNED[width]).tobytes()
    assert round_trip(base, new, width) == new


def test_an_unchanged_block_costs_only_its_header():
    block = np.random.default_rng(0).bytes(2**16)
    assert len(codec.encode(block, block, 2)) == codec.HEADER.size


def test_a_small_training_step_of_bf16_costs_little_more_than_its_entropy():
    random = np.random.default_rng(0)
    old = random.integers(0, 2**15, 2**19, np.uint16)
    steps = random.choice(np.array([0, 1, -1, 2], np.int16), len(old), p=[0.975, 0.011, 0.011, 0.003])
    payload = codec.encode(old.tobytes(), (old + steps.view(np.uint16)).tobytes(), 2)
    entropy_bits = -sum(p * np.log2(p) for p in (0.975, 0.011, 0.011, 0.003))
    assert len(payload) < 1.1 * entropy_bits * len(old) / 8


def test_a_block_may_be_decoded_onto_its_own_base():
    old = np.arange(1000, dtype=np.uint16)
    new = old + (old % 7 == 0)
    payload = codec.encode(old.tobytes(), new.astype(np.uint16).tobytes(), 2)
    block = bytearray(old.tobytes())
    codec.decode(memoryview(block), payload, memoryview(block), 2)
    assert bytes(block) == new.astype(np.uint16).tobytes()


@given(steps(max_values=300), st.data())
def test_a_damaged_payload_gives_an_error_or_other_values_and_nothing_else(step, data):
    width, base, new = step
    payload = bytearray(codec.encode(base, new, width))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(payload)))
    target = bytearray(len(base))
    for damaged in (bytes(payload), bytes(payload[:cut])):
        with contextlib.suppress(WeightsError):
            codec.decode(memoryview(base), damaged, memoryview(target), width)


def test_a_payload_for_a_longer_block_is_refused():
    old = np.arange(100, dtype=np.uint16)
    payload = codec.encode(old.tobytes(), (old + 1).tobytes(), 2)
    with pytest.raises(WeightsError, match="does not fit"):
        codec.decode(memoryview(bytes(198)), payload, memoryview(bytearray(198)), 2)
