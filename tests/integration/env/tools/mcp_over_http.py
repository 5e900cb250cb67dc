"""MCP servers behind a URL, for tests: a well-made one (`python mcp_over_http.py PORT`), and liars."""

import json
import sys
from collections.abc import AsyncIterator

from aiohttp import web
from mcp.server import MCPServer

CHUNK = b"a" * 65536
TOOL = {"name": "add", "description": "Add.", "inputSchema": {"type": "object"}}


def honest(port: int) -> None:
    server = MCPServer("honest")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two whole numbers."""
        return a + b

    @server.tool()
    def shout(mebibytes: int) -> str:
        """Say much."""
        return "a" * (mebibytes << 20)

    server.run("streamable-http", host="127.0.0.1", port=port, json_response=True)


class Liar:
    """Begins as a server should, and answers calls as its `kind` says; `sent` are the bytes that got away."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.sent = 0

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.post("/mcp", self._answer)])
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        question = await request.json()
        method = question.get("method", "")
        if method == "initialize":
            return self._result(
                question,
                {
                    "protocolVersion": question["params"]["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": self.kind, "version": "1"},
                },
            )
        if method == "tools/list":
            return self._result(question, {"tools": [TOOL]})
        if "id" not in question:
            return web.Response(status=202)
        return await self._call(request, question)

    async def _call(self, request: web.Request, question: dict) -> web.StreamResponse:
        match self.kind:
            case "bomb":
                import gzip

                packed = gzip.compress(json.dumps(self._said(question, "a" * (64 << 20))).encode())
                headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
                return web.Response(body=packed, headers=headers)
            case "prose":
                return web.Response(text="I would rather not.")
            case "broken":
                return web.Response(text='{"jsonrpc": "2.0", "id": 1, "res', content_type="application/json")
            case "busy":
                return web.Response(status=503)
            case "refuses":
                error = {"code": -32602, "message": "a is\nnot prime"}
                return web.json_response({"jsonrpc": "2.0", "id": question["id"], "error": error})
            case "half a character":
                return web.json_response(self._said(question, "\ud800"))
            case _:
                is_stream = self.kind == "flood of events"
                kind = "text/event-stream" if is_stream else "application/json"
                answer = web.StreamResponse(headers={"Content-Type": kind})
                await answer.prepare(request)
                async for part in self._flood(is_stream):
                    await answer.write(part)
                    self.sent += len(part)
                return answer

    async def _flood(self, is_stream: bool) -> AsyncIterator[bytes]:
        yield b"data: " if is_stream else b'{"a": "'
        while self.sent < 256 << 20:
            yield CHUNK

    def _result(self, question: dict, result: dict) -> web.Response:
        return web.json_response({"jsonrpc": "2.0", "id": question["id"], "result": result})

    def _said(self, question: dict, text: str) -> dict:
        result = {"content": [{"type": "text", "text": text}]}
        return {"jsonrpc": "2.0", "id": question["id"], "result": result}


if __name__ == "__main__":
    honest(int(sys.argv[1]))
