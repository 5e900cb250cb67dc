"""From a model or a checkpoint to a version: every tensor once, in the serving type, bit for bit."""

import json

import pytest
import torch
from safetensors.torch import save_file

from rl_agent.errors import WeightsError
from rl_agent.testing.weight_transfers import StateDict
from rl_agent.weights.format import pinned
from rl_agent.weights.format.delta import decode_delta, encode_delta
from rl_agent.weights.format.delta_policy import DeltaCost, DeltaSwitch
from rl_agent.weights.format.dtypes import torch_dtype
from rl_agent.weights.format.manifest import TensorEntry, lay_out
from rl_agent.weights.format.pinned import PinnedRing
from rl_agent.weights.publish import publish
from rl_agent.weights.publish.filling import fill, write_by
from rl_agent.weights.publish.publish import Publisher, choose_piece_bytes
from rl_agent.weights.store.mapped_file import DraftFile
from rl_agent.weights.store.store import DELTA, FULL
from rl_agent.weights.store.tensor_sources import Checkpoint, served_as, tensor_at
from tests.unit.weights.weight_versions import (
    open_store,
    publish_steps,
    random_state,
    same_bits,
    settings,
    small_step,
    state_of,
)


def write_checkpoint(folder, state, *, tied: bool, shards: int = 1):
    folder.mkdir()
    names = list(state)
    files = {name: f"model-{index % shards}.safetensors" for index, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: state[name] for name in names if files[name] == file}, folder / file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    return folder


def test_a_state_dict_is_published_bit_for_bit(tmp_path):
    with publish_steps(tmp_path, 1) as store:
        published = state_of(store.newest)
    assert published.keys() == random_state().keys()
    assert all(same_bits(published[name], tensor) for name, tensor in random_state().items())


@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_gives_the_same_version_as_the_model_in_memory(tmp_path, shards):
    folder = write_checkpoint(tmp_path / "model", random_state(), tied=False, shards=shards)
    with open_store(tmp_path / "store") as store:
        snapshot = Publisher(store, settings()).publish(1, Checkpoint.of(folder))
    with publish_steps(tmp_path / "memory", 1) as store:
        assert snapshot.manifest.digest == store.newest.manifest.digest


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


@pytest.mark.parametrize(("tied", "equal"), [(True, True), (True, False), (False, True)])
def test_a_checkpoints_output_layer_is_left_out_only_if_it_is_tied_and_equal(tmp_path, tied, equal):
    table = torch.randn(40, 8)
    state = {"model.embed_tokens.weight": table, "lm_head.weight": table.clone() if equal else table + 1}
    source = Checkpoint.of(write_checkpoint(tmp_path / "model", state, tied=tied))
    is_once = tied and equal
    assert source.aliases == ({"lm_head.weight": "model.embed_tokens.weight"} if is_once else {})
    assert len(source.specs) == (1 if is_once else 2)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(WeightsError, match="holds no safetensors file"):
        Checkpoint.of(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not one")
    with pytest.raises(WeightsError, match="cannot be read"):
        Checkpoint.of(tmp_path)


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


def test_a_small_step_is_published_as_a_small_delta_that_gives_the_same_bits(tmp_path):
    with publish_steps(tmp_path, 2, rows=3000) as store, store.hold(1) as old, store.hold(2) as new:
        assert new.manifest.delta.base_digest == old.manifest.digest
        assert new.manifest.delta.blob.size_bytes < 0.1 * new.manifest.full.size_bytes
        target = bytearray(new.manifest.full.size_bytes)

        def write(start, content):
            target[start : start + len(content)] = content

        decode_delta(new.map(DELTA), old.map(FULL), write, new.manifest.tensors, threads=2)
        assert target == new.map(FULL)


def test_a_changed_layout_is_published_without_a_delta(tmp_path):
    with publish_steps(tmp_path, 1) as store:
        wider = random_state() | {"norm.weight": torch.ones(8)}
        assert Publisher(store, settings()).publish(2, StateDict.of(wider)).manifest.delta is None


def test_a_delta_that_would_not_be_smaller_is_left_out(tmp_path):
    one, other = ({"a": torch.randint(0, 256, (5000,), dtype=torch.uint8)} for _ in range(2))
    with open_store(tmp_path) as store:
        publisher = Publisher(store, settings())
        publisher.publish(1, StateDict.of(one))
        assert publisher.publish(2, StateDict.of(other)).manifest.delta is None


def test_a_delta_written_on_a_device_is_the_same_file(tmp_path):
    with publish_steps(tmp_path, 2) as store, store.hold(1) as old, store.hold(2) as new:
        blobs, tensors = (old.map(FULL), new.map(FULL)), new.manifest.tensors
        how = {"block_bytes": 2**24, "threads": 2, "limit_bytes": len(blobs[1])}
        written = encode_delta(*blobs, tensors, device=torch.device("cpu"), **how)
        assert written == encode_delta(*blobs, tensors, **how) is not None


@pytest.mark.parametrize("has_room", [True, False])
def test_weights_of_a_device_have_their_difference_found_there_if_it_has_room(
    tmp_path, monkeypatch, has_room
):
    asked = []

    def on_device(*blobs, device=None, **how):
        if device is not None:
            asked.append(device)
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
        assert asked == [torch.device("cuda", 3)]
        target = bytearray(new.manifest.full.size_bytes)

        def write(start, content):
            target[start : start + len(content)] = content

        decode_delta(new.map(DELTA), old.map(FULL), write, new.manifest.tensors, threads=2)
        assert target == new.map(FULL)


@pytest.mark.parametrize("has_pages", [False, True])
def test_what_a_device_sends_in_parts_arrives_bit_for_bit(tmp_path, monkeypatch, has_pages):
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
        for entry in layout.tensors:
            write_by(ring, file, entry, state[entry.name])
    for entry in layout.tensors:
        assert same_bits(tensor_at(file.map(), entry), state[entry.name].to(torch_dtype(entry.dtype)))


@pytest.mark.parametrize("buffer_bytes", [100, 2**20])
def test_a_full_disk_ends_what_a_device_sends_in_one_line(tmp_path, monkeypatch, buffer_bytes):
    monkeypatch.setattr(pinned, "BUFFER_BYTES", buffer_bytes)
    file = DraftFile(tmp_path / "full.bin")
    monkeypatch.setattr(file, "write", _no_room)
    entry = TensorEntry(name="a", dtype="F32", shape=(500,), start=0, size_bytes=2000)
    with (
        pytest.raises(WeightsError, match="no room for 2000 bytes"),
        PinnedRing(torch.device("cpu"), threads=1) as ring,
    ):
        write_by(ring, file, entry, torch.ones(500))


def _no_room(start, content):
    raise WeightsError("no room for 2000 bytes of weights")


def _unused(start, content):
    raise AssertionError("wrote a part of a delta that is none")


def test_a_delta_of_another_layout_is_refused(tmp_path):
    with publish_steps(tmp_path, 2) as store, store.hold(1) as old, store.hold(2) as new:
        blob = bytes(new.map(DELTA))
        for damaged in (b"", blob[:-1], b"XXXX" + blob[4:], blob[:12] + b"\x01\0\0\0" + blob[16:]):
            with pytest.raises(WeightsError, match="delta: "):
                decode_delta(memoryview(damaged), old.map(FULL), _unused, new.manifest.tensors, threads=2)


def test_encoding_stops_at_its_limit(tmp_path):
    with publish_steps(tmp_path, 2) as store, store.hold(1) as old, store.hold(2) as new:
        parts = old.map(FULL), new.map(FULL), new.manifest.tensors
        assert encode_delta(*parts, block_bytes=1024, threads=2, limit_bytes=100) is None


AUTO = settings("auto", link_gbit_per_s=8e-7)  # 100 bytes/s


def test_a_delta_pays_if_it_saves_more_time_on_the_link_than_it_takes():
    assert DeltaCost(1000, 100, encode_s=2.0, decode_s=2.0).saved_s(100.0) == pytest.approx(5.0)
    assert DeltaCost(1000, 100, encode_s=5.0, decode_s=5.0).saved_s(100.0) == pytest.approx(-1.0)


def test_deltas_that_do_not_pay_are_left_out_for_a_while_and_then_tried_again():
    switch, is_on = DeltaSwitch(), []
    for _ in range(6):
        is_on.append(switch.is_on(AUTO))
        slow = DeltaCost(1000, 900, encode_s=3.0, decode_s=3.0)
        switch = switch.after(AUTO, slow if is_on[-1] else None)
    assert is_on == [True, False, False, True, False, False]


def test_deltas_that_pay_stay_on():
    switch = DeltaSwitch().after(AUTO, DeltaCost(1000, 10, encode_s=0.1, decode_s=0.1))
    assert switch.is_on(AUTO)


def test_a_publisher_stops_and_resumes_by_what_encoding_took(tmp_path):
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


def test_the_number_of_a_version_is_reported_once_and_before_anybody_can_see_it(tmp_path):
    reported = []
    with open_store(tmp_path / "store") as store:

        def report(number):
            reported.append((number, store.versions))

        publisher, source = Publisher(store, settings()), StateDict.of(random_state())
        first = publisher.publish(1, source, on_number=report)
        publisher.publish(2, source, unless=first.manifest.digest, on_number=report)
        publisher.publish(5, StateDict.of(random_state(1)), on_number=report)
    assert reported == [(1, []), (1, [1]), (5, [1])]
