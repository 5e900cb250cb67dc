"""`engine check` against a server that takes its time."""

import http.server
import json
import threading
import time

from rl_agent.cli._result import VerbResult
from rl_agent.cli.driver import engine
from rl_agent.engine.server import PROBE_TIMEOUT_S
from tests.support.rollout_setup import make_plan


def test_a_server_that_a_busy_machine_slows_down_is_not_taken_for_hung(tmp_path):
    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/health":
                time.sleep(PROBE_TIMEOUT_S + 0.5)
            body = json.dumps({"data": [{"id": "m", "root": str(tmp_path)}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        make_plan(tmp_path, engine_url=url, model=tmp_path).write(tmp_path / "plan.json")
        result = engine.main(["--plan", str(tmp_path / "plan.json"), "check"])
        server.shutdown()
    assert result == VerbResult({"answer": "wanted"})
