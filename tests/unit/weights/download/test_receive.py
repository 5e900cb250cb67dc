"""Bytes that no digest from the trainer covers are not believed; the full version is always the way out."""

from operator import eq

import pytest
import torch
from msgspec.structs import replace

from rl_agent.errors import WeightsError
from rl_agent.weights.download.receive import Announcement
from rl_agent.weights.format import checksums
from rl_agent.weights.format.checksums import digest
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import DELTA, FULL
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_sources import StoreSource, announced_of, raising, receiving
from tests.unit.weights.weight_versions import open_store, publish_steps, random_state, settings, small_step


@pytest.fixture
def sender(tmp_path):
    """A store with versions 1, 2 and 3, the later ones also as differences."""
    with publish_steps(tmp_path / "sender", 3, rows=300) as store:
        yield store


@pytest.fixture
def receiver(tmp_path):
    with receiving(tmp_path / "receiver") as parts:
        yield parts


def snapshot_of(store, weight_version):
    with store.hold(weight_version) as snapshot:
        return snapshot


def with_delta(manifest, **changes):
    return replace(manifest, delta=replace(manifest.delta, **changes))


def with_wrong_delta_digests(manifest):
    if manifest.delta is None:
        return manifest
    blob = manifest.delta.blob
    return with_delta(manifest, blob=replace(blob, digests=(digest(b"a lie"),) * len(blob.digests)))


def with_huge_delta(manifest):
    blob = manifest.delta.blob
    return with_delta(manifest, blob=replace(blob, size_bytes=2**47, piece_bytes=2**30))


def with_other_base(manifest):
    return with_delta(manifest, base_version=7, base_digest=digest(b"no version"))


@pytest.mark.parametrize("lie", [with_wrong_delta_digests, with_huge_delta, with_other_base])
def test_a_manifest_whose_difference_is_a_lie_costs_the_difference_alone(sender, receiver, lie):
    receive, store, catalog = receiver
    receive(announced_of(sender, 2), StoreSource(sender))
    given_on = []

    def watched(content, *_):
        given_on.append(catalog.manifest(3))
        return content

    liar = StoreSource(sender, "liar", {"manifest": lie, "read_piece": watched})
    honest = StoreSource(sender, "honest", {"read_piece": watched})
    snapshot, report = receive(announced_of(sender, 3), liar, honest)
    assert report.deltas == 0
    assert snapshot.map(FULL) == snapshot_of(sender, 3).map(FULL)
    assert not any(source.wrong_pieces for source in report.by_source.values())
    assert given_on
    assert all(manifest.delta is None for manifest in [*given_on, store.newest.manifest])


def test_a_lie_about_an_earlier_version_of_a_chain_is_found_as_well(sender, receiver):
    receive, _, _ = receiver
    receive(announced_of(sender, 1), StoreSource(sender))

    def lie(manifest):
        return with_wrong_delta_digests(manifest) if manifest.weight_version == 2 else manifest

    snapshot, report = receive(announced_of(sender, 3), StoreSource(sender, "liar", {"manifest": lie}))
    assert report.deltas == 0
    assert snapshot.map(FULL) == snapshot_of(sender, 3).map(FULL)
    assert not any(source.wrong_pieces for source in report.by_source.values())


def test_without_an_announced_difference_the_version_comes_in_full(sender, receiver):
    receive, _, _ = receiver
    receive(announced_of(sender, 2), StoreSource(sender))
    content = announced_of(sender, 3).digest
    snapshot, report = receive(Announcement(3, content), StoreSource(sender))
    assert report.deltas == 0
    assert snapshot.manifest.delta is None


def test_a_manifest_of_another_version_is_its_sources_failure(sender, receiver):
    receive, store, _ = receiver

    def renumbered(manifest):
        return replace(manifest, weight_version=8)

    liar = StoreSource(sender, "liar", {"manifest": renumbered})
    with pytest.raises(WeightsError, match=r"liar: .*version 8.*not 3"):
        receive(announced_of(sender, 3), liar)
    assert store.versions == []
    receive(announced_of(sender, 3), liar, StoreSource(sender))
    assert store.versions == [3]


def wrong_bytes_of_delta(content, blob, index):
    return bytes(len(content)) if blob == DELTA else content


def no_delta(content, blob, index):
    return raising(WeightsError("has no delta blob of version 3"))() if blob == DELTA else content


@pytest.mark.parametrize("lie", [wrong_bytes_of_delta, no_delta, None], ids=["wrong", "absent", "bomb"])
def test_a_delta_that_cannot_be_had_is_followed_by_the_full_version(sender, receiver, monkeypatch, lie):
    receive, _, _ = receiver
    receive(announced_of(sender, 2), StoreSource(sender))
    if lie is None:
        monkeypatch.setattr("rl_agent.weights.download.receive.decode_delta", raising(MemoryError()))
    source = StoreSource(sender, "only one", {"read_piece": lie} if lie else {})
    snapshot, report = receive(announced_of(sender, 3), source)
    assert report.deltas == 0
    assert snapshot.map(FULL) == snapshot_of(sender, 3).map(FULL)
    assert snapshot.manifest.delta is None


@pytest.fixture
def frozen(tmp_path):
    """A store with two versions of which one large tensor is the same, and no differences."""
    with open_store(tmp_path / "frozen") as store:
        publisher = Publisher(store, settings("never"))
        state = random_state(rows=300) | {"visual.weight": torch.arange(16_000)}
        for weight_version in (1, 2):
            publisher.publish(weight_version, StateDict.of(state))
            state = small_step(state, weight_version)
        yield store


def test_pieces_of_frozen_weights_are_not_fetched_again(frozen, receiver):
    receive, _, _ = receiver
    receive(announced_of(frozen, 1), StoreSource(frozen))
    read = []

    def watched(content, blob, index):
        read.append(index)
        return content

    source = StoreSource(frozen, "source", {"read_piece": watched})
    snapshot, report = receive(announced_of(frozen, 2), source)
    before, after = (snapshot_of(frozen, version).manifest.full for version in (1, 2))
    changed = [at for at, piece in enumerate(after.digests) if piece != before.digests[at]]
    assert 0 < len(changed) < len(after.digests) / 4
    assert sorted(read) == changed
    assert snapshot.map(FULL) == snapshot_of(frozen, 2).map(FULL)
    assert report.resumed_bytes + report.fetched_bytes == after.size_bytes


def test_a_damaged_piece_of_frozen_weights_is_fetched(frozen, receiver):
    receive, store, _ = receiver
    receive(announced_of(frozen, 1), StoreSource(frozen))
    with store.newest.path(FULL).open("r+b") as file:
        file.write(b"damage" * 10)
    snapshot, _ = receive(announced_of(frozen, 2), StoreSource(frozen))
    assert snapshot.map(FULL) == snapshot_of(frozen, 2).map(FULL)


def test_of_a_new_draft_only_copied_pieces_are_checked(frozen, receiver, monkeypatch):
    receive, _, _ = receiver
    receive(announced_of(frozen, 1), StoreSource(frozen))
    checked = []
    monkeypatch.setattr(checksums, "digest", lambda piece: (checked.append(len(piece)), digest(piece))[1])
    receive(announced_of(frozen, 2), StoreSource(frozen))
    before, after = (snapshot_of(frozen, version).manifest.full.digests for version in (1, 2))
    assert len(checked) == sum(map(eq, before, after)) < len(after)
