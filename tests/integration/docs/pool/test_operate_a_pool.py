"""docs/how-to/operate-a-pool.md, typed as it stands, but at a free port."""

import json

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from tests.integration.docs.reader import Reader

PAGE = "docs/how-to/operate-a-pool.md"


@pytest.fixture
def reader(tmp_path):
    port = free_port()
    return Reader(PAGE, tmp_path, {"manager journal": f"manager port={port} journal", ":5000": f":{port}"})


def test_a_manager_answers_all_commands_and_restarts_from_its_journal(reader):
    watch, status, metrics = reader.commands("python -m rl_agent.cli pool status")
    start = reader.block("python -m rl_agent.cli manager")
    with reader.leaves_running(start) as manager:
        manager.wait_for("http://127.0.0.1:", 60)
        with reader.leaves_running(watch) as watching:
            watching.wait_until(lambda: watching.printed().count("requests  submitted 0") >= 2, 30)
        state = json.loads(reader.types(status))
        assert {"submitted", "open", "completed", "failed"} <= set(state["requests"])
        assert "rl_pool_engines{" in reader.types(metrics)
    with reader.leaves_running(start) as manager:
        manager.wait_for("http://127.0.0.1:", 60)
        assert "pool.sqlite" in manager.printed()
