"""A checkpoint without its tensors is read as it was written, or refused."""

import json
from pathlib import Path

import pytest

from rl_agent.errors import StoreError
from rl_agent.served_model.digest import FileDigest
from rl_agent.trainer.grpo.checkpoint.states import (
    STATE,
    newest_served,
    note_served,
    read_state,
    recorded_files,
    write_state,
)

STATE_OF_A_STEP = {"served": "version-000001", "iteration": 3, "windows": {2: {"length": 0.1}}}


def written(folder: Path, step: int = 1, **changes: object) -> Path:
    checkpoint = folder / f"step-{step}"
    checkpoint.mkdir()
    write_state(checkpoint, STATE_OF_A_STEP | changes, {"groups.bin": FileDigest(7, "ab" * 32)})
    return checkpoint


def flipped(file: Path, index: int) -> bytes:
    content = bytearray(file.read_bytes())
    content[index] ^= 1
    return bytes(content)


def test_a_flip_of_any_byte_is_noticed(tmp_path):
    checkpoint = written(tmp_path)
    whole = (checkpoint / STATE).read_bytes()
    for index in range(len(whole)):
        (checkpoint / STATE).write_bytes(whole)
        (checkpoint / STATE).write_bytes(flipped(checkpoint / STATE, index))
        with pytest.raises(StoreError, match=r"state\.json: differs from what was written"):
            read_state(checkpoint)


def test_the_model_of_a_state_is_recorded_with_the_digests_of_its_files(tmp_path):
    checkpoint = written(tmp_path)
    note_served(checkpoint, "version-000002")
    state = read_state(checkpoint)
    assert (state["served"], state["iteration"]) == ("version-000002", 3)
    assert recorded_files(state) == {"groups.bin": FileDigest(7, "ab" * 32)}


def test_the_newest_readable_state_is_used_and_without_any_none_begins(tmp_path):
    written(tmp_path, 1, served="version-000001")
    newest = written(tmp_path, 2, served="version-000002")
    (newest / STATE).write_bytes(b"")
    assert newest_served(tmp_path) == "version-000001"
    (tmp_path / "step-1" / STATE).write_bytes(b"{}")
    (tmp_path / "step-1" / STATE).write_text(json.dumps({"files": {}}))
    with pytest.raises(StoreError, match=r"step-2/state\.json: differs"):
        newest_served(tmp_path)
