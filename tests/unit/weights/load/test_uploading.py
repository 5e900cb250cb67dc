"""A GPU is given the version as it is, however little room there is for it on the way."""

import threading

import pytest
import torch

from rl_agent.weights.format import pinned
from rl_agent.weights.load.uploading import upload
from tests.unit.weights.weight_versions import publish_steps, random_state, same_bits

CPU = torch.device("cpu")


@pytest.fixture
def version(tmp_path):
    with publish_steps(tmp_path, 1, rows=300) as store, store.hold(1) as snapshot:
        yield snapshot.map("full"), snapshot.manifest.tensors


@pytest.mark.parametrize("threads", [1, 3])
def test_every_tensor_arrives_in_its_order_bit_for_bit(version, monkeypatch, threads):
    monkeypatch.setattr(pinned, "BUFFER_BYTES", 100)
    view, entries = version
    tensors = list(upload(view, entries, CPU, threads=threads))
    assert [name for name, _ in tensors] == [entry.name for entry in entries]
    assert all(same_bits(tensor, random_state(rows=300)[name]) for name, tensor in tensors)


def test_a_tensor_without_room_stays_on_the_host_and_the_others_go_on(version, monkeypatch):
    monkeypatch.setattr(pinned, "BUFFER_BYTES", 100)
    view, entries = version
    largest, make = max(entry.size_bytes for entry in entries), torch.empty
    refused = []

    def empty(size_bytes, *more, **how):
        if size_bytes == largest and "device" in how:
            refused.append(size_bytes)
            raise torch.OutOfMemoryError
        return make(size_bytes, *more, **how)

    monkeypatch.setattr(torch, "empty", empty)
    tensors = dict(upload(view, entries, CPU, threads=2))
    assert refused == [largest]
    assert all(same_bits(tensor, random_state(rows=300)[name]) for name, tensor in tensors.items())


def test_a_loader_that_stops_halfway_leaves_no_thread(version):
    tensors = upload(*version, CPU, threads=2)
    next(tensors)
    tensors.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pinned")]
