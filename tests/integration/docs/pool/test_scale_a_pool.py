"""docs/how-to/scale-a-pool.md on this machine's CPU: its `local.yaml` with a tiny model, at a free port."""

import json
import os
import signal

import pytest

from rl_agent.cluster.shared_fs.address import free_port
from tests.integration.docs.reader import Reader, missing_lines
from tests.unit.docs.documented_blocks import blocks

PAGE = "docs/how-to/scale-a-pool.md"
pytestmark = [pytest.mark.extended, pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture
def reader(tmp_path, small):
    port = free_port()
    instead = {
        "manager journal": f"manager port={port} journal",
        "scale --provider": f"scale --manager http://127.0.0.1:{port} --provider",
        "127.0.0.1:5000": f"127.0.0.1:{port}",
    }
    page_reader = Reader(PAGE, tmp_path, instead)
    local = blocks(page_reader.page, "yaml")[0].replace("--model Qwen/Qwen3-0.6B", small.worker)
    (page_reader.checkout / "local.yaml").write_text(local)
    return page_reader


def test_the_first_request_brings_a_machine_and_leaving_ends_it(reader):
    with reader.leaves_running(reader.block("python -m rl_agent.cli manager")) as manager:
        manager.wait_for("http://127.0.0.1:", 60)
        with reader.leaves_running(reader.block("python -m rl_agent.cli pool scale")) as scale:
            scale.wait_for("(no machines): 0 wanted: nothing is asked for", 60)
            answer = json.loads(reader.types(reader.block("curl http"), 600))
            assert answer["usage"]["completion_tokens"] > 0
            fleet = json.loads((reader.checkout / "pool-scale.json").read_text())["name"]
            promised = blocks(reader.page, "text")[0].replace("rl-6b420ba4", fleet)
            scale.wait_until(lambda: not missing_lines(promised, scale.printed()), 60)
            os.killpg(scale.process.pid, signal.SIGINT)  # Ctrl+C
            assert "no machine is left" in scale.ends_well(180)  # --settle-s after its provider lists none
    assert reader.types("bash scripts/examples/local_machines.sh list") == ""
