"""The real wandb library without a server: one run a log path, each line once, with samples as a table."""

import json
import os
import subprocess
import sys

import pytest

from rl_agent.monitor import metrics
from rl_agent.paths import PROJECT_ROOT
from rl_agent.testing.rollout_setup import make_plan
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


def history(folder) -> list[dict]:
    """What stands in the file of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    rows = []
    for file in sorted(folder.glob("offline-run-*/run-*.wandb")):
        store = DataStore()
        store.open_for_scan(str(file))
        while (content := store.scan_data()) is not None:
            found = Record()
            found.ParseFromString(content)
            if found.HasField("history"):
                items = found.history.item
                rows.append(
                    {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                )
    return rows


def test_two_runs_of_one_log_path_are_one_run_of_wandb_that_has_each_line_once(tmp_path):
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
    assert rows[0]["test/samples"]["_type"] == "table-file" and rows[0]["test/samples"]["nrows"] == 1
    ids = {folder.name.rpartition("-")[2] for folder in (paths.log_path / "wandb").glob("offline-run-*")}
    assert len(ids) == 1
