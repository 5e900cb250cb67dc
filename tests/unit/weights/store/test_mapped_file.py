"""Files of weights are written and read in place, and nothing of an earlier version is left in them."""

import errno
import fcntl
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from rl_agent.errors import WeightsError
from rl_agent.weights.load.base import verify
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store import mapped_file
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_sources import raising
from tests.unit.weights.weight_versions import open_store, publish_steps, random_state, settings, state_of


@pytest.mark.parametrize("where", ["tmp_path", "memory"])
@pytest.mark.parametrize("serving_dtype", [None, "BF16"])
def test_used_memory_leaves_no_trace_in_the_next_version(tmp_path, request, where, serving_dtype):
    shrinking = [random_state(1, rows=300), random_state(2, rows=200), random_state(3, rows=99)]
    root = request.getfixturevalue(where)
    with open_store(root / "one", keep_versions=1) as store, open_store(tmp_path / "other") as fresh:
        publisher = Publisher(store, settings("never"), serving_dtype=serving_dtype)
        for weight_version, state in enumerate(shrinking, 1):
            transposed = {
                name: tensor.t().contiguous().t() for name, tensor in state.items() if tensor.dim() == 2
            }
            snapshot = publisher.publish(weight_version, StateDict.of(state | transposed))
        other = Publisher(fresh, settings("never"), serving_dtype=serving_dtype)
        expected = other.publish(3, StateDict.of(shrinking[2]))
        assert snapshot.manifest.digest == expected.manifest.digest


def test_writes_of_a_reader_to_its_view_change_no_version(tmp_path):
    with publish_steps(tmp_path, 1) as store:
        state_of(store.newest)["norm.weight"].zero_()
        assert torch.equal(state_of(store.newest)["norm.weight"], random_state()["norm.weight"])


def test_memory_opened_by_a_link_that_is_dropped_is_used_elsewhere(memory, monkeypatch):
    file, link, lease = mapped_file.DraftFile(memory / "full.bin"), memory / "link.bin", fcntl.fcntl
    link.hardlink_to(file.path)
    with ExitStack() as reader:

        def open_then_unlink(descriptor, command, kind):
            lease(descriptor, command, kind)
            if kind == fcntl.F_UNLCK:
                reader.enter_context(link.open("rb"))
                link.unlink()

        monkeypatch.setattr(mapped_file.fcntl, "fcntl", open_then_unlink)
        assert file.is_used_elsewhere()


@pytest.mark.parametrize("call", ["ftruncate", "pwrite", "open", "mkdir", "write_bytes"])
def test_a_full_disk_is_one_line_with_folder_sizes_and_key(tmp_path, monkeypatch, call):
    full = raising(OSError(errno.ENOSPC, "No space left on device"))
    with open_store(tmp_path / "store") as store:
        publisher = Publisher(store, settings())
        with monkeypatch.context() as no_room:
            no_room.setattr(Path if call in ("mkdir", "write_bytes") else mapped_file.os, call, full)
            with pytest.raises(WeightsError) as caught:
                publisher.publish(1, StateDict.of(random_state(1)))
        message = str(caught.value)
        assert message.startswith(f"{tmp_path / 'store'}: no room for ")
        assert "bytes of weights, " in message
        assert " are free; make room there, or let weights.store name a folder with more" in message
        assert "\n" not in message
        publisher.publish(1, StateDict.of(random_state(1)))
        verify(store.newest)
