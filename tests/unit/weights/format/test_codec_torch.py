"""Changes that a device finds are written as those that numpy finds."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_agent.weights.format import codec, codec_torch

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


WIDTHS = st.sampled_from([1, 2, 4, 8])


@st.composite
def steps(draw, max_values: int = 700):
    """(width, block, next block): unchanged, few, many or all values changed, by little or by anything."""
    width = draw(WIDTHS)
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


@given(steps())
def test_torch_writes_the_same_bytes_as_numpy(step):
    width, base, new = step
    device_codec = codec_torch.DeviceCodec(torch.device("cpu"), max(1, len(new)))
    for _ in range(2):  # the second time in memory that has held a block
        assert device_codec.encode(base, new, width) == codec.encode(base, new, width)
