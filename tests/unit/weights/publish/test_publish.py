"""A model or a checkpoint becomes a version: every tensor once, in the serving type, bit for bit."""

import pytest
import torch

from rl_agent.weights.format import delta_policy
from rl_agent.weights.format.delta import encode_delta
from rl_agent.weights.publish import publish
from rl_agent.weights.publish.filling import fill
from rl_agent.weights.publish.publish import Publisher, choose_piece_bytes
from rl_agent.weights.store.store import DELTA, FULL
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_versions import (
    open_store,
    publish_steps,
    random_state,
    same_bits,
    settings,
    small_step,
    state_of,
    with_delta,
)


def test_a_state_dict_is_published_bit_for_bit(tmp_path):
    with publish_steps(tmp_path, 1) as store:
        published = state_of(store.newest)
    assert published.keys() == random_state().keys()
    assert all(same_bits(published[name], tensor) for name, tensor in random_state().items())


@pytest.mark.parametrize(
    ("size_mib", "most_mib", "piece_mib"),
    [(0.1, 16, 1), (32, 16, 1), (256, 16, 4), (4096, 16, 16), (256, 1, 1)],
)
def test_a_small_version_has_small_pieces(size_mib, most_mib, piece_mib):
    assert choose_piece_bytes(int(size_mib * 2**20), most_mib * 2**20) == piece_mib * 2**20


def test_floats_are_cast_to_the_serving_type_and_nothing_else_is(tmp_path):
    state = random_state()
    with open_store(tmp_path) as store:
        served = state_of(Publisher(store, settings(), serving_dtype="BF16").publish(1, StateDict.of(state)))
    for name, tensor in state.items():
        is_cast = tensor.dtype in (torch.float32, torch.float16, torch.bfloat16)
        assert same_bits(served[name], tensor.to(torch.bfloat16) if is_cast else tensor)


def test_tied_tensors_of_a_model_are_stored_once(tmp_path):
    table = torch.randn(40, 8)
    state = {"lm_head.weight": table, "embed_tokens.weight": table, "copy": table.clone(), "part": table[:5]}
    with open_store(tmp_path) as store:
        manifest = Publisher(store, settings()).publish(1, StateDict.of(state)).manifest
    assert manifest.aliases == {"embed_tokens.weight": "lm_head.weight"}
    assert [tensor.name for tensor in manifest.tensors] == ["copy", "lm_head.weight", "part"]


def test_tensors_that_are_sharded_over_ranks_are_gathered(tmp_path):
    from torch import distributed
    from torch.distributed.tensor import Shard, distribute_tensor

    rendezvous = f"file://{tmp_path}/rendezvous"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        whole = torch.randn(6, 4)
        sharded = distribute_tensor(whole, mesh, [Shard(0)])
        with open_store(tmp_path / "store") as store:
            snapshot = Publisher(store, settings()).publish(1, StateDict.of({"a": sharded}))
            assert same_bits(state_of(snapshot)["a"], whole)
    finally:
        distributed.destroy_process_group()


def test_a_changed_layout_is_published_without_a_delta(tmp_path):
    with publish_steps(tmp_path, 1) as store:
        wider = random_state() | {"norm.weight": torch.ones(8)}
        assert Publisher(store, settings()).publish(2, StateDict.of(wider)).manifest.delta is None


def test_a_delta_that_would_not_be_smaller_is_left_out(tmp_path):
    random_bytes = [{"a": torch.randint(0, 256, (5000,), dtype=torch.uint8)} for _ in range(2)]
    with open_store(tmp_path) as store:
        publisher = Publisher(store, settings())
        publisher.publish(1, StateDict.of(random_bytes[0]))
        assert publisher.publish(2, StateDict.of(random_bytes[1])).manifest.delta is None


@pytest.mark.parametrize("has_room", [True, False])
def test_weights_of_a_device_are_compared_there_if_it_has_room(tmp_path, monkeypatch, has_room):
    devices = []

    def on_device(*blobs, device=None, **how):
        if device is not None:
            devices.append(device)
            if not has_room:
                raise torch.OutOfMemoryError
            how |= {"device": torch.device("cpu")}
        return encode_delta(*blobs, **how)

    def fill_from_device(*args, **how):
        fill(*args, **how)
        return torch.device("cuda", 3)

    monkeypatch.setattr(publish, "encode_delta", on_device)
    monkeypatch.setattr(publish, "fill", fill_from_device)
    with publish_steps(tmp_path, 2) as store, store.hold(1) as old, store.hold(2) as new:
        assert devices == [torch.device("cuda", 3)]
        blobs = old.map(FULL), new.map(FULL)
        how = {"block_bytes": 2**24 if has_room else 2**20, "threads": 2, "limit_bytes": 2**30}
        assert new.map(DELTA) == encode_delta(*blobs, new.manifest.tensors, **how)
        assert with_delta(new.map(DELTA), blobs[0], new.manifest.tensors) == blobs[1]


def test_a_publisher_stops_and_resumes_by_what_encoding_took(tmp_path, monkeypatch):
    monkeypatch.setattr(delta_policy, "RETRY_AFTER", 2)
    ticks = iter(range(0, 10**6, 1000))
    with open_store(tmp_path, keep_versions=9) as store:
        publisher = Publisher(store, settings("auto"), clock=lambda: float(next(ticks)))
        state = random_state(rows=1000)
        for weight_version in range(1, 7):
            publisher.publish(weight_version, StateDict.of(state))
            state = small_step(state, weight_version)
        has_delta = []
        for weight_version in range(1, 7):
            with store.hold(weight_version) as snapshot:
                has_delta.append(snapshot.manifest.delta is not None)
    assert has_delta == [False, True, False, False, True, False]


def test_a_versions_number_is_reported_once_before_anybody_sees_it(tmp_path):
    reported = []
    with open_store(tmp_path / "store") as store:

        def report(number):
            reported.append((number, store.versions))

        publisher, source = Publisher(store, settings()), StateDict.of(random_state())
        first = publisher.publish(1, source, on_number=report)
        publisher.publish(2, source, unless=first.manifest.digest, on_number=report)
        publisher.publish(5, StateDict.of(random_state(1)), on_number=report)
    assert reported == [(1, []), (1, [1]), (5, [1])]
