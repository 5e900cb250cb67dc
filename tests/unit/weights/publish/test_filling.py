"""Tensors are written to their places, from whatever device they come."""

import pytest
import torch

from rl_agent.errors import WeightsError
from rl_agent.weights.format import pinned
from rl_agent.weights.format.dtypes import torch_dtype
from rl_agent.weights.format.manifest import TensorEntry, lay_out
from rl_agent.weights.format.pinned import PinnedRing
from rl_agent.weights.publish.filling import RingWriter
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.mapped_file import DraftFile
from rl_agent.weights.store.tensor_sources import served_as, tensor_at
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_versions import open_store, random_state, same_bits, settings


@pytest.mark.parametrize("given", [{"a": torch.ones(3)}, {"a": torch.ones(2), "b": torch.ones(2, 1)}])
def test_a_source_that_gives_other_tensors_than_it_said_is_refused(tmp_path, given):
    class Lying(StateDict):
        def tensors(self):
            yield from given.items()

    state = {"a": torch.ones(2), "b": torch.ones(2)}
    with open_store(tmp_path) as store:
        with pytest.raises(WeightsError, match="came twice, or in another shape"):
            Publisher(store, settings()).publish(1, Lying(state, {}))
        assert store.versions == []


@pytest.mark.parametrize("has_pages", [False, True])
def test_parts_sent_by_a_device_arrive_bit_for_bit(tmp_path, monkeypatch, has_pages):
    monkeypatch.setattr(pinned, "BUFFER_BYTES", 100)
    state = random_state(rows=300)
    layout = lay_out(served_as(spec, "BF16") for spec in StateDict.of(state).specs)
    file = DraftFile(tmp_path / "full.bin")
    file.resize(layout.size_bytes)
    file.write(0, bytes(layout.size_bytes))
    place = file.place
    monkeypatch.setattr(
        file, "place", (lambda s, e: memoryview(file._mapping())[s:e]) if has_pages else place
    )
    with PinnedRing(torch.device("cpu"), threads=3) as ring:
        writer = RingWriter(ring, file, [])
        for entry in layout.tensors:
            writer.write(entry, state[entry.name])
        writer.flush()
    for entry in layout.tensors:
        assert same_bits(tensor_at(file.map(), entry), state[entry.name].to(torch_dtype(entry.dtype)))


@pytest.mark.parametrize("buffer_bytes", [100, 2**20])
def test_a_full_disk_ends_what_a_device_sends_in_one_line(tmp_path, monkeypatch, buffer_bytes):
    def no_room(start, content):
        raise WeightsError("no room for 2000 bytes of weights")

    monkeypatch.setattr(pinned, "BUFFER_BYTES", buffer_bytes)
    file = DraftFile(tmp_path / "full.bin")
    monkeypatch.setattr(file, "write", no_room)
    entry = TensorEntry(name="a", dtype="F32", shape=(500,), start=0, size_bytes=2000)
    with (
        pytest.raises(WeightsError, match="no room for 2000 bytes"),
        PinnedRing(torch.device("cpu"), threads=1) as ring,
    ):
        writer = RingWriter(ring, file, [])
        writer.write(entry, torch.ones(500))
        writer.flush()
