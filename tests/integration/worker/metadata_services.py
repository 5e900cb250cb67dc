"""Stand-ins for the clouds' metadata services on loopback, with their status codes, headers and tokens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer


class Aws:
    """EC2's service where IMDSv2 is required: no answer without a session token of its own."""

    def __init__(self) -> None:
        self.token = "AQAEAIrPOo-1=="
        self.metadata: dict[str, str] = {}
        self.num_refused = 0
        self.paths: list[str] = []
        self.lasts_s = 0.0
        """Seconds that each answer of the metadata takes."""
        self.app = web.Application()
        self.app.router.add_put("/latest/api/token", self.new_token)
        self.app.router.add_get("/latest/meta-data/{path:.*}", self.read)

    async def new_token(self, request: web.Request) -> web.Response:
        seconds = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if not seconds.isdigit() or not 1 <= int(seconds) <= 21600:
            return web.Response(status=400)
        if "X-Forwarded-For" in request.headers:
            return web.Response(status=403)
        return web.Response(text=self.token, headers={"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": seconds})

    async def read(self, request: web.Request) -> web.Response:
        if request.headers.get("X-aws-ec2-metadata-token") != self.token:
            self.num_refused += 1
            return web.Response(status=401)
        path = request.match_info["path"]
        self.paths.append(path)
        await asyncio.sleep(self.lasts_s)
        text = self.metadata.get(path)
        return web.Response(status=404) if text is None else web.Response(text=text)

    def take_back(self, action: str = '{"action": "terminate", "time": "2020-01-01T00:02:00Z"}') -> None:
        self.metadata["spot/instance-action"] = action


class Gcp:
    """Compute Engine's service, which holds a question until the value is another than the asker's etag."""

    def __init__(self) -> None:
        self.value, self.etag = "FALSE", "a1b2"
        self.changed = asyncio.Condition()
        self.num_asked = self.num_held = 0
        self.num_unavailable = 1
        """Number of first answers that fail: the service is sometimes in maintenance itself."""
        self.app = web.Application()
        self.app.router.add_get("/", self.root)
        self.app.router.add_get("/computeMetadata/v1/instance/preempted", self.read)

    async def root(self, request: web.Request) -> web.Response:
        return web.Response(text="computeMetadata/\n", headers={"Metadata-Flavor": "Google"})

    async def read(self, request: web.Request) -> web.Response:
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        self.num_asked += 1
        if self.num_asked <= self.num_unavailable:
            return web.Response(status=503)
        query = request.query
        if query.get("wait_for_change") == "true" and query.get("last_etag") == self.etag:
            self.num_held += 1
            async with self.changed, asyncio.timeout(float(query["timeout_sec"])):
                await self.changed.wait_for(lambda: self.etag != query["last_etag"])
        return web.Response(text=self.value, headers={"Metadata-Flavor": "Google", "ETag": self.etag})

    async def take_back(self) -> None:
        async with self.changed:
            self.value, self.etag = "TRUE", "c3d4"
            self.changed.notify_all()


class Azure:
    """Azure's service: header and version are required; events name the machines that they are for."""

    def __init__(self, name: str = "spot_7") -> None:
        self.name = name
        self.events: list[object] = []
        self.lasts_s = 0.0
        """Seconds that each answer about events takes."""
        self.num_asked = 0
        self.app = web.Application()
        self.app.router.add_get("/metadata/scheduledevents", self.read_events)
        self.app.router.add_get("/metadata/instance/compute/name", self.read_name)

    def refusal(self, request: web.Request) -> web.Response | None:
        if request.headers.get("Metadata") != "true" or not request.query.get("api-version"):
            return web.json_response(
                {"error": "Bad request. Required metadata header not specified"}, status=400
            )
        return None

    async def read_name(self, request: web.Request) -> web.Response:
        return self.refusal(request) or web.Response(text=self.name)

    async def read_events(self, request: web.Request) -> web.Response:
        self.num_asked += 1
        await asyncio.sleep(self.lasts_s)
        body = {"DocumentIncarnation": len(self.events), "Events": self.events}
        return self.refusal(request) or web.json_response(body)

    def announce(self, kind: str, machine: str, not_before: str = "Mon, 19 Sep 2016 18:29:47 GMT") -> None:
        event = {"EventId": "602d9444-d2cd-49c7-8624-8643e7171297", "EventStatus": "Scheduled"}
        event |= {"EventType": kind, "ResourceType": "VirtualMachine", "Description": ""}
        event |= {"EventSource": "Platform", "DurationInSeconds": -1}
        self.events.append(event | {"Resources": [machine], "NotBefore": not_before})


@asynccontextmanager
async def served(cloud: Aws | Gcp | Azure) -> AsyncIterator[str]:
    """Serve a stand-in; gives its base URL."""
    async with TestServer(cloud.app) as server:
        yield str(server.make_url("")).rstrip("/")
