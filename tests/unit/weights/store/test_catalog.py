"""A host offers others versions that it has whole, and verified pieces of one that it still fetches."""

import os

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.format.pieces import PieceSet
from rl_agent.weights.store.catalog import Catalog
from rl_agent.weights.store.store import FULL
from tests.unit.weights.weight_versions import open_store, publish_steps


@pytest.fixture
def store(tmp_path):
    with publish_steps(tmp_path / "store", 2) as store:
        yield store


def test_a_version_in_the_store_is_offered_whole(store):
    catalog = Catalog(store)
    assert catalog.versions == {1, 2}
    with store.hold(2) as snapshot, catalog.open(2, FULL) as offer:
        assert catalog.manifest(2) == snapshot.manifest
        assert offer.pieces.is_complete and offer.blob == snapshot.manifest.full
        assert os.pread(offer.descriptor, 99, 0) == bytes(offer.view[:99]) == bytes(snapshot.map(FULL)[:99])


def test_absent_versions_are_refused_by_name(store):
    catalog = Catalog(store)
    with pytest.raises(WeightsError, match="has no version 7"):
        catalog.manifest(7)
    with pytest.raises(WeightsError, match="has no full blob of version 7"), catalog.open(7, FULL):
        pass
    with pytest.raises(WeightsError, match="version 1 has no delta blob"), catalog.open(1, "delta"):
        pass


def test_a_version_in_transfer_is_offered_with_the_pieces_already_here(store, tmp_path):
    with store.hold(2) as snapshot, open_store(tmp_path / "other") as empty:
        manifest, catalog = snapshot.manifest, Catalog(empty)
        pieces = PieceSet(len(manifest.full.digests))
        with catalog.partial(manifest, FULL, snapshot.path(FULL), pieces):
            pieces.add(0)
            assert (catalog.versions, catalog.manifest(2)) == ({2}, manifest)
            with catalog.open(2, FULL) as offer:
                assert offer.pieces is pieces and offer.view is None
        assert catalog.versions == set()
        with pytest.raises(WeightsError, match="has no full blob of version 2"), catalog.open(2, FULL):
            pass


def test_a_blob_that_is_open_stays_readable_when_its_version_is_collected(store):
    with Catalog(store).open(1, FULL) as offer:
        before = os.pread(offer.descriptor, 99, 0)
        store.discard(1)
        assert os.pread(offer.descriptor, 99, 0) == before
    assert Catalog(store).versions == {2}
