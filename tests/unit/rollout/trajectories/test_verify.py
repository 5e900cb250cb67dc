"""Damage of what was recorded: named, left out where it is little, refused where it is much."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rl_agent.cli.trajectories import main
from rl_agent.errors import StoreError
from rl_agent.paths import RunPaths
from rl_agent.rollout.trajectories.images import keep_images
from rl_agent.rollout.trajectories.line import TRAJECTORY
from rl_agent.rollout.trajectories.shard import read_lines
from rl_agent.types import Observation
from tests.unit.rollout.trajectories_made import (
    make_header,
    make_step,
    make_trajectory,
    seeds_of,
    write_shard,
)

STEPS = (make_step("8"),)


def write(shard: Path, count: int, *, first: int = 0) -> Path:
    return write_shard(shard, make_header(), *(make_trajectory(first + i, steps=STEPS) for i in range(count)))


def change(shard: Path, *numbers: int) -> None:
    """Another reward in some lines, which stay JSON of the same shape."""
    lines = shard.read_bytes().splitlines(keepends=True)
    for number in numbers:
        assert b'"reward":1.0' in lines[number - 1]
        lines[number - 1] = lines[number - 1].replace(b'"reward":1.0', b'"reward":0.0', 1)
    shard.write_bytes(b"".join(lines))


def verify(paths: RunPaths, capsys, *options: str) -> tuple[int, str]:
    code = main(["verify", "--log-path", str(paths.log_path), *options])
    return code, capsys.readouterr().out


def rows(report: str) -> list[list[str]]:
    lines = [line.strip() for line in report.splitlines() if "trajectories.jsonl" in line[:40]]
    return [re.split(r" {2,}", line) for line in lines]


def test_a_reward_that_was_changed_on_the_disk_is_left_out_and_named(paths, caplog):
    shard = write(paths.shard("train", 1), 300)
    change(shard, 12, 200)
    assert seeds_of(paths) == [index for index in range(300) if index not in (10, 198)]
    assert caplog.text.count("is damaged: its bytes do not match its checksum; the line is left out") == 2
    assert "iteration1:12: is damaged" in caplog.text


def test_more_than_a_hundredth_of_an_iteration_is_refused(paths):
    change(write(paths.shard("train", 1), 300), 12, 13, 14, 15)
    with pytest.raises(StoreError, match=r"iteration1:15: is damaged.* no more than 1% .* --accept-loss"):
        seeds_of(paths)


def test_an_iteration_without_its_manifest_is_refused_and_kept(paths):
    shard = write(paths.shard("train", 1), 300)
    paths.manifest("train", 1).unlink()
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size * 2 // 3])
    assert paths.iterations("train") == [1]
    message = r"iteration1\.manifest\.json: is missing, though .*iteration1 is fin"
    with pytest.raises(StoreError, match=message):
        seeds_of(paths)


@settings(max_examples=200, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_whichever_bit_flips_no_episode_is_read_that_was_not_recorded(tmp_path_factory, place, bit):
    paths = RunPaths(tmp_path_factory.getbasetemp() / "flips")
    shard = paths.shard("train", 1)
    if not shard.exists():
        write(shard, 5)
    whole = shard.read_bytes()
    flipped = bytearray(whole)
    flipped[int(place * len(whole))] ^= 1 << bit
    damaged = shard.with_name("flipped")
    damaged.write_bytes(flipped)
    damage: list[Exception] = []
    undamaged = list(read_lines(damaged, TRAJECTORY, may_be_torn=False, on_damage=damage.append))
    recorded = list(read_lines(shard, TRAJECTORY))
    assert damage
    assert [episode for episode in recorded if episode in undamaged] == undamaged
    assert len(undamaged) >= len(recorded) - 2  # a newline that is gone costs the lines on both sides


def test_verify_of_what_is_whole_says_so_for_every_file(paths, capsys):
    write(paths.shard("train", 1), 3)
    growing = write(paths.checkpoint_shard("train", 2), 2)
    growing.write_bytes(growing.read_bytes()[:-9])  # torn by a kill
    code, report = verify(paths, capsys)
    name = "train_trajectories.jsonl.iteration"
    assert code == 0
    assert rows(report) == [[f"{name}1", "finished", "3", "3", "ok"], [f"{name}2", "growing", "-", "1", "ok"]]


def test_verify_names_every_damaged_line_until_the_loss_is_accepted(paths, capsys):
    change(write(paths.shard("train", 1), 9), 2, 5)
    change(write(paths.checkpoint_shard("train", 2), 3), 3)
    code, report = verify(paths, capsys)
    assert code == 1
    assert [row[2:] for row in rows(report)] == [["9", "7", "2 missing, 2 damaged"], ["-", "2", "1 damaged"]]
    assert re.findall(r"iteration\d(?:\.checkpoint)?:\d: is damaged", report) == [
        "iteration1:2: is damaged", "iteration1:5: is damaged", "iteration2.checkpoint:3: is damaged",
    ]  # fmt: skip

    with pytest.raises(StoreError):
        seeds_of(paths)
    code, report = verify(paths, capsys, "--accept-loss")
    assert code == 0
    assert "train iteration 2: is not finished; --resume runs damaged episodes again" in report
    assert seeds_of(paths) == [1, 2, 4, 5, 6, 7, 8]
    code, report = verify(paths, capsys, "--iteration", "1")
    assert (code, rows(report)[0][2:]) == (0, ["7", "7", "ok (2 damaged, run again or accepted)"])


@pytest.mark.parametrize("what", ["shorter", "gone", "no manifest", "damaged manifest"])
def test_verify_tells_what_is_missing_and_what_is_left_can_be_accepted(paths, capsys, what):
    first, second = (write(paths.shard("train", 1, rank=rank), 4, first=4 * rank) for rank in (0, 1))
    manifest = paths.manifest("train", 1)
    entries = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps([entry | {"bytes": first.stat().st_size} for entry in entries]))
    if what == "shorter":
        second.write_bytes(second.read_bytes()[:-9])
    elif what == "gone":
        second.unlink()
    elif what == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text("[")
    with pytest.raises(StoreError):
        seeds_of(paths)
    code, report = verify(paths, capsys)
    assert code == 1
    named = {"shorter": "holds \\d+ of the \\d+ bytes", "gone": "is missing", "no manifest": "is missing"}
    assert re.search(named.get(what, "cannot be read"), report)

    assert verify(paths, capsys, "--accept-loss")[0] == 0
    left = {"shorter": 7, "gone": 4}.get(what, 8)
    assert seeds_of(paths) == list(range(left))
    assert verify(paths, capsys)[0] == 0


def test_verify_names_lost_or_changed_images_once_however_often_shown(paths, capsys, tmp_path):
    seen = []
    for height in range(3):
        Image.new("RGB", (8, 8 + height)).save(tmp_path / "screen.png")
        seen.append(keep_images(Observation("look", (str(tmp_path / "screen.png"),)), paths.images).images)
    steps = tuple(make_step("8", images=images) for images in seen * 2)
    write_shard(paths.shard("train", 1), make_header(), make_trajectory(0, steps=steps))
    assert verify(paths, capsys)[0] == 0
    Path(seen[0][0]).unlink()
    Path(seen[2][0]).write_bytes(b"another")
    code, report = verify(paths, capsys)
    assert (code, rows(report)[0][-1]) == (1, "2 images lost")
    assert seen[0][0] in report and seen[1][0] not in report and seen[2][0] in report
