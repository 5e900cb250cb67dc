"""Serves a version over HTTP with ranges, for hosts that reach only the manager and for other programs.

    GET …/version-000007/manifest.json
    GET …/version-000007/full.bin            also delta.bin; `Range: bytes=a-b` gives a part

The names are those of a store's folder, so any static file server can stand in.
"""

from aiohttp import web

from rl_agent.errors import WeightsError
from rl_agent.weights.format.manifest import dump_manifest
from rl_agent.weights.store.catalog import blob_of
from rl_agent.weights.store.store import MANIFEST, Snapshot


def version_file(snapshot: Snapshot, name: str) -> web.StreamResponse:
    """Raises web.HTTPNotFound for a name that is none of its files."""
    if name == MANIFEST:
        return web.Response(body=dump_manifest(snapshot.manifest), content_type="application/json")
    blob, dot, ending = name.rpartition(".")
    try:
        blob_of(snapshot.manifest, blob)
    except WeightsError as error:
        raise web.HTTPNotFound(text=str(error)) from error
    if (dot, ending) != (".", "bin"):
        raise web.HTTPNotFound
    return web.FileResponse(snapshot.path(blob))
