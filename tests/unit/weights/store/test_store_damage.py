"""A store that was damaged costs one try: what is damaged goes, and the version is had again in full."""

import os
import shutil
from pathlib import Path

import pytest

from rl_agent.errors import WeightsError
from rl_agent.weights.load.base import verify
from rl_agent.weights.publish.publish import Publisher
from rl_agent.weights.store.store import FULL, MANIFEST, DamagedVersion
from tests.support.weight_transfers import StateDict
from tests.unit.weights.weight_sources import StoreSource, announced_of, raising, receiving
from tests.unit.weights.weight_versions import open_store, publish_steps, random_state, settings

DAMAGES = ("cut", "lost", "no manifest", "no folder", "a file in its place", "a folder for its file")


def damage(folder: Path, kind: str) -> None:
    blob, manifest = folder / f"{FULL}.bin", folder / MANIFEST
    if kind == "cut":
        os.truncate(blob, 100)
    elif kind == "garbled manifest":
        manifest.write_text("{")
    elif kind == "no manifest":
        manifest.unlink()
    elif kind in ("lost", "a folder for its file"):
        blob.unlink()
    else:
        shutil.rmtree(folder)
    if kind == "a file in its place":
        folder.write_text("stray")
    elif kind == "a folder for its file":
        blob.mkdir()


@pytest.mark.parametrize("kind", [*DAMAGES, "garbled manifest"])
def test_a_store_opens_without_its_damaged_version_and_takes_that_again(tmp_path, kind):
    with publish_steps(tmp_path, 2) as store:
        folder = store.newest.folder
    damage(folder, kind)
    with open_store(tmp_path) as store:
        assert store.versions == [1]
        Publisher(store, settings()).publish(2, StateDict.of(random_state(2)))
        assert store.versions == [1, 2]
        verify(store.newest)


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_version_that_is_damaged_while_the_store_is_open_is_dropped(tmp_path, kind, caplog):
    with publish_steps(tmp_path, 2) as store:
        damage(store.newest.folder, kind)
        with pytest.raises(WeightsError, match="has no version 2"), store.hold(2):
            pass
        assert store.versions == [1]
        assert caplog.text.count("version-000002: is damaged and dropped") == 1
        Publisher(store, settings()).publish(2, StateDict.of(random_state(2)))
        verify(store.newest)


def test_versions_whose_files_are_gone_are_collected_all_the_same(tmp_path):
    with open_store(tmp_path, keep_versions=1) as store:
        publisher = Publisher(store, settings("never"))
        publisher.publish(1, StateDict.of(random_state(1)))
        with store.hold(1) as held:
            publisher.publish(2, StateDict.of(random_state(2)))
            held.path(FULL).unlink()
        publisher.publish(3, StateDict.of(random_state(3)))
        assert store.versions == [3]


@pytest.fixture
def sender(tmp_path):
    with publish_steps(tmp_path / "sender", 3, rows=300) as store:
        yield store


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_versions_are_fetched_again_in_full(tmp_path, sender, kind):
    with receiving(tmp_path / "receiver") as (receive, store, _):
        receive(announced_of(sender, 2), StoreSource(sender))
        damage(store.newest.folder, kind)
        for number in (2, 3):
            receive(announced_of(sender, number), StoreSource(sender))
            verify(store.newest)
        assert store.newest.weight_version == 3


def test_bytes_that_differ_are_found_before_they_are_served_and_dropped(tmp_path, sender):
    with receiving(tmp_path / "receiver") as (receive, store, _):
        receive(announced_of(sender, 3), StoreSource(sender))
        with store.newest.path(FULL).open("r+b") as file:
            file.write(b"\xff\xff")
        with pytest.raises(DamagedVersion, match="1 pieces differ"):
            verify(store.newest)
        store.discard(3)
        receive(announced_of(sender, 3), StoreSource(sender))
        verify(store.newest)


def test_an_own_disk_error_is_named_once_and_the_next_try_begins_anew(tmp_path, sender, monkeypatch):
    with receiving(tmp_path / "receiver") as (receive, store, _):
        with monkeypatch.context() as broken:
            broken.setattr(os, "ftruncate", raising(OSError(5, "Input/output error")))
            with pytest.raises(WeightsError, match=r"receiver: .*Input/output error; the next try starts"):
                receive(announced_of(sender, 3), StoreSource(sender))
        assert not list(store.root.glob("draft-*"))
        receive(announced_of(sender, 3), StoreSource(sender))
