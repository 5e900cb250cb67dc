"""MCP servers for tests: `python mcp_servers.py KIND PIDS`; each writes its process ids to the file PIDS."""

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
    sys.exit(3)
if kind == "honest":  # a child that would outlive its server
    note(subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid)

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
