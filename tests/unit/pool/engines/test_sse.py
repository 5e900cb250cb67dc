"""Events are read out of a stream of bytes."""

from rl_agent.pool.engines.sse import EventReader
from tests.unit.pool.engines.adapter_wires import PIECES, response, vllm


def test_events_are_read_however_the_bytes_are_cut():
    whole = b"".join(response(vllm)).replace(b"\n", b"\r\n")
    expected = EventReader().feed(whole)
    for size in (1, 2, 7, 64):
        reader = EventReader()
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert [payload for part in parts for payload in reader.feed(part)] == expected
    assert len(expected) == len(PIECES) + 1
