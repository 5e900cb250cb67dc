"""DeepSpeed's converter is run on a checkpoint's shards, and what it could not do is said."""

import json
from collections import namedtuple

import pytest

from rl_agent.trainer.llamafactory.optimizer import reshape
from rl_agent.trainer.llamafactory.optimizer.reshape import ReshapeFailed, settings_for_reshaped


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "global_step10").mkdir()
    (tmp_path / "global_step10" / "shard.pt").write_bytes(b"state")
    (tmp_path / "latest").write_text("global_step10\n")
    return tmp_path


def test_the_newest_shards_are_converted_beside_themselves(checkpoint, converter, tmp_path):
    commands = converter(0)
    leftover = checkpoint / "global_step10_universal"
    leftover.mkdir()
    reshape.reshape(checkpoint, tmp_path / "log", 60.0)
    [command] = commands
    newest = str(checkpoint / "global_step10")
    assert command[-4:] == ["--input_folder", newest, "--output_folder", str(leftover)]
    assert not leftover.exists()  # of a preparation that was cut off
    assert (tmp_path / "log").read_bytes() == b"its words"


@pytest.mark.parametrize(
    ("status", "reason"), [(3, "it ended with exit code 3"), (None, "it took more than 60 s")]
)
def test_a_failed_conversion_names_its_log_and_leaves_shards(checkpoint, converter, tmp_path, status, reason):
    converter(status)
    with pytest.raises(ReshapeFailed, match=f"{reason}; see {tmp_path / 'log'}"):
        reshape.reshape(checkpoint, tmp_path / "log", 60.0)
    assert (checkpoint / "global_step10" / "shard.pt").read_bytes() == b"state"


def test_a_disk_without_room_for_both_forms_is_not_filled(checkpoint, converter, tmp_path, monkeypatch):
    commands = converter(0)
    monkeypatch.setattr(reshape.shutil, "disk_usage", lambda path: namedtuple("u", "free")(9))
    with pytest.raises(ReshapeFailed, match=r"it needs 0\.0 GiB of disk"):
        reshape.reshape(checkpoint, tmp_path / "log", 60.0)
    assert not commands


def test_the_settings_load_the_universal_form_and_keep_the_rest(tmp_path):
    before = {"zero_optimization": {"stage": 1}, "checkpoint": {"parallel_write": True}}
    (tmp_path / "zero.json").write_text(json.dumps(before))
    settings = settings_for_reshaped(tmp_path / "zero.json", tmp_path / "made.json")
    universal = {"checkpoint": {"parallel_write": True, "load_universal": True}}
    assert json.loads(settings.read_bytes()) == before | universal
