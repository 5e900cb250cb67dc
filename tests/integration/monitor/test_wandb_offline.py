"""The real wandb library without a server: one run a log path, each line once, with samples as a table."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT
from tests.support.rollout_setup import make_plan
from tests.unit.rollout.trajectories_made import make_header, make_trajectory, write_shard

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]


def record(plan, home) -> None:
    plan_file = home / f"{plan.run_id}.json"
    plan.write(plan_file)
    words = [sys.executable, "-m", "rl_agent.cli", "wandb-sync", "--plan", str(plan_file)]
    environ = os.environ | {"HOME": str(home)}
    with subprocess.Popen(words, cwd=PROJECT_ROOT, env=environ) as process:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(100)


def records(content: bytes) -> Iterator[bytes]:
    """The records of a file of LevelDB's log format, in blocks of 32 KiB, behind a header of 7 bytes."""
    at, whole = 7, b""
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole = (whole if kind in (3, 4) else b"") + content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield whole


def history(folder) -> list[dict]:
    """Records in the files of the offline runs."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for file in sorted(folder.glob("offline-run-*/run-*.wandb")):
        for content in records(file.read_bytes()):
            offline_record = Record.FromString(content)
            if offline_record.HasField("history"):
                items = offline_record.history.item
                rows.append(
                    {entry.key or "/".join(entry.nested_key): json.loads(entry.value_json) for entry in items}
                )
    return rows


def test_two_runs_of_one_log_path_are_one_wandb_run_with_each_line_once(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    first = make_plan(tmp_path, "wandb.mode=offline", engine_url="http://127.0.0.1:1", model=model)
    paths = first.paths
    write_shard(paths.shard("test", 1), make_header(1, "test"), make_trajectory(0, split="test"))
    metrics.append(paths.metrics, {"iteration": 1, "split": "test", "test/reward_mean": 0.5})
    record(first, tmp_path)
    metrics.append(paths.metrics, {"iteration": 2, "split": "train", "train/reward_mean": 0.7})
    record(first.model_copy(update={"run_id": "second"}), tmp_path)

    rows = history(paths.log_path / "wandb")
    assert [row["iteration"] for row in rows] == [1, 2]
    (table,) = (paths.log_path / "wandb").rglob("media/table/test/samples_*.table.json")
    assert rows[0]["test/samples/_type"] == "table-file"
    assert len(json.loads(table.read_text())["data"]) == 1
    ids = {folder.name.rpartition("-")[2] for folder in (paths.log_path / "wandb").glob("offline-run-*")}
    assert len(ids) == 1
