"""Changes that a device finds are written as those that numpy finds."""

import torch
from hypothesis import given

from rl_agent.weights.format import codec, codec_torch
from tests.unit.weights.format.test_codec import steps


@given(steps())
def test_torch_writes_the_same_bytes_as_numpy(step):
    width, base, new = step
    device_codec = codec_torch.DeviceCodec(torch.device("cpu"), max(1, len(new)))
    for _ in range(2):  # the second time in memory that has held a block
        assert device_codec.encode(base, new, width) == codec.encode(base, new, width)
