"""A judge on loopback that speaks OpenAI's chat API, for pages whose judge needs somebody's key."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.unit.judge.judge_api import completion

Rule = Callable[[str], tuple[str, str]]
"""A question -> PASS or FAIL, and the reason."""


@contextmanager
def judging(rule: Rule) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The judge's `base_url`, and what it has been asked so far: the body of each request, and its key."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body | {"key": self.headers["Authorization"]})
            verdict, reason = rule(json.dumps(body["messages"]))
            answer = json.dumps(completion(json.dumps({"reason": reason, "verdict": verdict}))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
