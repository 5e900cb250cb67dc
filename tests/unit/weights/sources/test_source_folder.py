"""A store of this host as a source: read as it is, refused where it is not what is wanted."""

import numpy as np
import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.connection.deadline import Deadline
from rl_agent.weights.sources import source_folder
from rl_agent.weights.sources.source_folder import FolderSource, having
from rl_agent.weights.store.store import FULL
from tests.unit.weights.weight_versions import publish_steps


@pytest.fixture
def store(tmp_path):
    with publish_steps(tmp_path / "store", 2) as store:
        yield store


@pytest.fixture
def connection(store):
    connection = FolderSource(store.root).connection()
    connection.open(Deadline.after(30))
    yield connection
    connection.close()


def test_stores_that_have_the_content_whole_are_found(store, tmp_path, monkeypatch):
    roots, digest = [tmp_path / "none", store.root], store.newest.manifest.digest
    assert [found.folder.parent for found in having(roots, 2, digest)] == [store.root]
    assert not list(having(roots, 2, "0" * 64)) and not list(having(roots, 3, digest))
    monkeypatch.setattr(source_folder.os, "getuid", lambda: -1)
    assert not list(having(roots, 2, digest))  # of another user


def test_its_manifest_offers_no_delta_since_a_copy_is_faster(store, connection):
    assert store.newest.manifest.delta is not None
    manifest = connection.manifest(2, store.newest.manifest.digest, Deadline.after(30))
    assert manifest.delta is None and manifest.full == store.newest.manifest.full
    with pytest.raises(WeightsError, match="version 2 has another content"):
        connection.manifest(2, "0" * 64, Deadline.after(30))


def test_it_has_every_piece_and_reads_them_byte_for_byte(store, connection):
    wanted = np.array([False, True, True, True])
    assert connection.recommend(2, FULL, wanted, 2, 0.0, Deadline.after(30)) == [1, 2]
    target = bytearray(5000)
    connection.read_piece(2, FULL, 1, 100, memoryview(target), Deadline.after(30))
    with store.hold(2) as snapshot:
        assert bytes(target) == bytes(snapshot.map(FULL)[100:5100])
        size_bytes = snapshot.manifest.full.size_bytes
    with pytest.raises(WeightsError, match="version 2 ends at byte"):
        connection.read_piece(2, FULL, 0, size_bytes - 10, memoryview(bytearray(99)), Deadline.after(30))


def test_open_versions_are_read_on_after_they_were_collected(store, connection):
    connection.read_piece(1, FULL, 0, 0, memoryview(bytearray(9)), Deadline.after(30))
    store.discard(1)
    connection.read_piece(1, FULL, 0, 9, memoryview(bytearray(9)), Deadline.after(30))
    with pytest.raises((WeightsError, OSError)):
        connection.manifest(1, None, Deadline.after(30))
