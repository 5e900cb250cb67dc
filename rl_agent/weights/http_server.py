"""The same versions over HTTP with ranges: the way through NAT and proxies, and for other programs.

    GET /version-000007/manifest.json
    GET /version-000007/full.bin             also delta.bin; `Range: bytes=a-b` gives a part

Every request carries `Authorization: Bearer <token>`. Whole versions only. The paths are those of a store's
folder, so any static file server can stand in.
"""

import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

from rl_agent.errors import WeightsError
from rl_agent.weights.manifest import dump_manifest
from rl_agent.weights.shelf import blob_of
from rl_agent.weights.store import MANIFEST, SnapshotStore

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def http_app(store: SnapshotStore, token: str) -> web.Application:
    """An application that serves `store`; mount it where the host's other routes are, or run it alone."""

    @web.middleware
    async def authenticate(request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, b"Bearer " + token.encode()):
            raise web.HTTPUnauthorized
        return await handler(request)

    async def file(request: web.Request) -> web.StreamResponse:
        try:
            with store.hold(int(request.match_info["version"])) as snapshot:
                name = request.match_info["name"]
                if name == MANIFEST:
                    return web.Response(
                        body=dump_manifest(snapshot.manifest), content_type="application/json"
                    )
                blob = name.removesuffix(".bin")
                blob_of(snapshot.manifest, blob)
                return web.FileResponse(snapshot.path(blob))
        except WeightsError as error:
            raise web.HTTPNotFound(text=str(error)) from error

    app = web.Application(middlewares=[authenticate])
    app.router.add_get(r"/version-{version:\d+}/{name:manifest\.json|full\.bin|delta\.bin}", file)
    return app
