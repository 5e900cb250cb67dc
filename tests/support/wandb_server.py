"""A stand-in for wandb's server on loopback: enough of its API for a run to be opened, followed and closed.

    with WandbServer() as server:            WANDB_BASE_URL=server.url WANDB_API_KEY=KEY
        server.fault = "status 500"          # of every answer from now on; "" is none

It keeps the history lines of each run by their number, as wandb does, and how often a run was opened. Faults:
`status N`, `slow S` (seconds before each answer), `cut` (the connection ends in mid-answer), `torn` (half of
the body).
"""

import gzip
import json
import threading
import time
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

KEY = "0" * 40
ENTITY = "team"


class WandbServer:
    def __init__(self, port: int = 0) -> None:
        self.fault = ""
        self.history: dict[str, dict[int, str]] = defaultdict(dict)
        """The lines of each run as they were sent, by their number."""
        self.opened: Counter[str] = Counter()
        self.closed: dict[str, int] = {}
        """Exit codes."""
        self.requests: list[str] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._answer(self, b"")

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    content = gzip.decompress(content)
                outer._answer(self, content)

            do_PUT = do_POST

            def log_message(self, format: str, *words: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._http.shutdown()
        self._http.server_close()

    def values(self, run: str, name: str) -> list[Any]:
        """Return the values of a metric, in the order of the lines; a line that a later one has replaced is
        gone."""
        with self._lock:
            lines = [json.loads(line) for _, line in sorted(self.history[run].items())]
        return [line[name] for line in lines if name in line]

    def _answer(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        self.requests.append(f"{request.command} {request.path}")
        kind, _, value = self.fault.partition(" ")
        if kind == "slow":
            self._stopping.wait(float(value))
        if kind == "status":
            return self._send(request, int(value), {"error": "the stand-in was told to say so"})
        if kind == "cut":
            request.close_connection = True
            request.connection.close()
            return None
        try:
            answer = self._done(request.path, content)
        except (ValueError, KeyError) as error:
            return self._send(request, 400, {"error": repr(error)})
        return self._send(request, 200, answer, is_torn=kind == "torn")

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, answer: object, *, is_torn: bool = False
    ) -> None:
        body = json.dumps(answer).encode()
        try:
            request.send_response(status)
            request.send_header("Content-Type", "application/json")
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body[: len(body) // 2] if is_torn else body)
            request.close_connection |= is_torn
        except OSError:
            request.close_connection = True

    def _done(self, path: str, content: bytes) -> object:
        if path.endswith("/file_stream"):
            return self._take_lines(path.split("/")[-2], json.loads(content))
        if path == "/graphql":
            call = json.loads(content)
            return self._graphql(call["query"], call.get("variables") or {})
        return {}

    def _take_lines(self, run: str, sent: dict[str, Any]) -> object:
        with self._lock:
            for name, chunk in (sent.get("files") or {}).items():
                if name == "wandb-history.jsonl":
                    for number, line in enumerate(chunk["content"], chunk["offset"]):
                        self.history[run][number] = line
            if sent.get("complete"):
                self.closed[run] = sent.get("exitcode", -1)
        return {"exitcode": None, "limits": {}}

    def _graphql(self, query: str, variables: dict[str, Any]) -> object:
        user: dict[str, Any] = {
            "id": "1",
            "entity": ENTITY,
            "username": ENTITY,
            "name": ENTITY,
            "email": "",
            "flags": "{}",
        }
        user |= {"admin": False, "photoUrl": "", "teams": {"edges": []}, "deletedAt": None, "accountType": ""}
        if "upsertBucket" in query:
            return {"data": {"upsertBucket": self._opened(variables)}}
        if "RunResumeStatus" in query or "historyLineCount" in query:
            return {"data": {"model": {"bucket": self._resumed(variables["name"])}}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/put/{name}"} for name in variables["files"]]
            return {"data": {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}}
        if "serverInfo" in query:
            return {"data": {"viewer": user, "serverInfo": {"features": [], "cliVersionInfo": {}}}}
        return {"data": {"viewer": user}}

    def _opened(self, variables: dict[str, Any]) -> object:
        name = variables.get("name") or variables.get("id")
        with self._lock:
            self.opened[str(name)] += 1
            is_new = self.opened[str(name)] == 1
        project: dict[str, Any] = {
            "id": "2",
            "name": variables.get("project"),
            "entity": {"id": "3", "name": ENTITY},
        }
        bucket: dict[str, Any] = {
            "id": str(name),
            "name": name,
            "displayName": variables.get("displayName"),
            "sweepName": None,
        }
        bucket |= {"description": None, "config": None, "historyLineCount": self._lines(str(name))}
        return {"bucket": bucket | {"project": project}, "inserted": is_new}

    def _resumed(self, name: str) -> object:
        if not self.opened[name]:
            return None
        with self._lock:
            lines = [line for _, line in sorted(self.history[name].items())]
        last = json.dumps(lines[-1:])
        counts: dict[str, Any] = {"historyLineCount": len(lines), "eventsLineCount": 0, "logLineCount": 0}
        tails: dict[str, Any] = {
            "historyTail": last,
            "eventsTail": "[]",
            "summaryMetrics": "{}",
            "config": "{}",
            "tags": [],
        }
        return {"name": name, "id": name, "wandbConfig": None} | counts | tails

    def _lines(self, name: str) -> int:
        return len(self.history[name])


def wait_for(is_true: Any, what: str, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
