"""MCP servers for tests: `python mcp_servers.py KIND PIDS`; each writes its process ids to the file PIDS."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from mcp.server import MCPServer

kind, pids = sys.argv[1], Path(sys.argv[2])


def note(pid: int) -> None:
    with pids.open("a") as file:
        file.write(f"{pid}\n")


note(os.getpid())
if kind == "silent":
    time.sleep(600)
if kind == "gone":
    sys.exit("the key of the service is missing")
if kind == "honest":  # a child that would outlive its server
    note(subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid)


def speak_by_hand() -> None:
    """Serve one tool, which says on standard output what no server may, or far more than one should."""
    notice = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
    line = "is this a log?" if kind == "prints" else json.dumps(notice)
    for question in map(json.loads, sys.stdin):
        method = question["method"]
        if "id" not in question:
            continue
        result: dict = {"tools": [{"name": "break", "inputSchema": {"type": "object"}},
                                  {"name": "add", "inputSchema": {"type": "object"}}]}  # fmt: skip
        if method == "initialize":
            result = {
                "protocolVersion": question["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": kind, "version": "1"},
            }
        elif method == "tools/call":
            if question["params"]["name"] == "break" and kind == "floods":
                sys.stderr.write("a line of a log\n" * 50_000)
            elif question["params"]["name"] == "break":
                sys.stdout.write(f"{line}\n" * 50_000)
            result = {"content": [{"type": "text", "text": "3"}]}
        print(json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": result}), flush=True)


if kind in ("prints", "chatters", "floods"):
    speak_by_hand()
    sys.exit()
server = MCPServer(kind)


@server.tool()
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("as always")


@server.tool()
def environment() -> str:
    """Say what the server sees of its environment."""
    return str(dict(os.environ))


@server.tool(name="hang")
def hang() -> str:
    """Answer never."""
    time.sleep(600)
    return ""


@server.tool(name="break")
def break_() -> str:
    """Break the connection."""
    if kind == "huge":
        return "a" * (5 << 20)
    os._exit(1)


server.run()
