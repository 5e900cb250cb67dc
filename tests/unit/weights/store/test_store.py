"""Versions appear whole, stay as they are, and go when nobody holds them."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rl_agent.errors import WeightsError
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store import preallocated
from rl_agent.weights.store import store as store_module
from rl_agent.weights.store.store import FULL, SnapshotStore, having, open_snapshot
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_versions import open_store, publish_steps, random_state, settings, state_of


def test_a_reader_sees_no_version_before_it_is_whole(tmp_path):
    with open_store(tmp_path) as store:
        state = random_state()

        class Watching(StateDict):
            def tensors(self):
                for item in super().tensors():
                    assert store.versions == []
                    with pytest.raises(WeightsError, match="not a weight version"):
                        open_snapshot(tmp_path, 1)
                    yield item

        Publisher(store, settings()).publish(1, Watching(state, {}))
        assert store.versions == [1]
        assert open_snapshot(tmp_path, 1).manifest == store.newest.manifest


def test_a_broken_publish_leaves_the_old_version_and_the_next_one_works(tmp_path):
    with publish_steps(tmp_path, 1) as store:
        publisher = Publisher(store, settings())

        class Broken(StateDict):
            def tensors(self):
                yield from list(super().tensors())[:2]
                raise RuntimeError("the trainer died")

        with pytest.raises(RuntimeError):
            publisher.publish(2, Broken(random_state(5), {}))
        assert store.versions == [1]
        publisher.publish(2, StateDict.of(random_state(6)))
        assert store.versions == [1, 2]


def test_others_are_served_while_a_version_goes_to_the_disk(tmp_path, monkeypatch):
    served = []
    with publish_steps(tmp_path, 1) as store, ThreadPoolExecutor(1) as other:

        def sync(path):
            served.append(other.submit(lambda: store.newest).result(timeout=10))

        first = store.newest
        monkeypatch.setattr(store_module, "sync", sync)
        Publisher(store, settings()).publish(2, StateDict.of(random_state(2)))
    assert len(served) > 2
    assert set(served) == {first}


def test_a_version_is_collected_by_its_last_reader_while_the_next_is_begun(tmp_path, monkeypatch):
    threads, put = [], preallocated.PreallocatedFile.put
    with open_store(tmp_path, keep_versions=1) as store:

        def put_meanwhile(*arguments):
            threads.append(threading.Thread(target=store.draft, args=(3,)))
            threads[-1].start()
            threads[-1].join(0.2)
            put(*arguments)

        publisher = Publisher(store, settings())
        publisher.publish(1, StateDict.of(random_state(1)))
        with store.hold(1):
            publisher.publish(2, StateDict.of(random_state(2)))
            monkeypatch.setattr(preallocated.PreallocatedFile, "put", put_meanwhile)
        threads[0].join()
        assert store.versions == [2]


def test_versions_only_go_up(tmp_path):
    with publish_steps(tmp_path, 2) as store:
        for weight_version in (1, 2):
            with pytest.raises(WeightsError, match="is not newer than 2"):
                Publisher(store, settings()).publish(weight_version, StateDict.of(random_state()))
        assert store.versions == [1, 2]


def test_a_held_version_stays_until_it_is_given_back(tmp_path):
    with open_store(tmp_path, keep_versions=1) as store:
        publisher = Publisher(store, settings())
        publisher.publish(1, StateDict.of(random_state(1)))
        with store.hold(1) as held:
            for weight_version in (2, 3):
                publisher.publish(weight_version, StateDict.of(random_state(weight_version)))
            assert store.versions == [1, 3]
            assert torch.equal(state_of(held)["norm.weight"], random_state(1)["norm.weight"])
        assert store.versions == [3]
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {"owner.lock", "preallocated.bin", "version-000003"}
        with pytest.raises(WeightsError, match="has no version 1"), store.hold(1):
            pass


def test_a_store_is_its_users_own(tmp_path):
    with open_store(tmp_path / "store") as store:
        assert store.root.stat().st_mode & 0o777 == 0o700


def test_a_reader_in_another_process_keeps_its_bytes_too(tmp_path):
    script = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)"
    )
    script += "; f.close(); print(flush=True); sys.stdin.readline(); sys.stdout.buffer.write(m[:])"
    with open_store(tmp_path, keep_versions=1) as store:
        publisher = Publisher(store, settings())
        path = publisher.publish(1, StateDict.of(random_state(1))).path(FULL)
        content = path.read_bytes()
        command = [sys.executable, "-c", script, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            reader.stdout.readline()
            for weight_version in (2, 3, 4):
                publisher.publish(weight_version, StateDict.of(random_state(weight_version)))
            assert reader.communicate(b"\n", timeout=30)[0] == content


def test_a_second_writer_is_refused_and_a_later_one_finds_the_versions(tmp_path):
    with publish_steps(tmp_path, 2), pytest.raises(WeightsError, match="another process writes"):
        SnapshotStore(tmp_path, keep_versions=1)
    with open_store(tmp_path) as store:
        assert store.versions == [1, 2]


def test_weights_that_do_not_fit_are_refused_and_leave_nothing(tmp_path):
    with open_store(tmp_path) as store:
        draft = store.draft(1)
        with pytest.raises(WeightsError, match="no room for"):
            draft.create(FULL, 2**46)
        assert list(draft.folder.iterdir()) == []


def test_a_version_whose_file_was_cut_is_not_opened(tmp_path):
    with publish_steps(tmp_path, 1) as store:
        path = store.newest.path(FULL)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(WeightsError, match="do not fit its manifest"):
            open_snapshot(tmp_path, 1)


def test_stores_that_have_the_content_whole_are_found(tmp_path):
    with publish_steps(tmp_path / "store", 2) as store:
        roots, digest = [tmp_path / "none", store.root], store.newest.manifest.digest
        assert [snapshot.folder.parent for snapshot in having(roots, 2, digest)] == [store.root]
        assert not list(having(roots, 2, "0" * 64)) and not list(having(roots, 3, digest))
