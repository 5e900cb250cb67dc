"""Handles the manager's own routes: engines register and beat, runs submit and collect, people look."""

import asyncio
import secrets
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from rl_agent.config.plan import PoolConfig
from rl_agent.http.kept_connections import KeptConnections
from rl_agent.http.tokens import is_same_secret
from rl_agent.pool.api.auth import IS_OPERATOR, check_address
from rl_agent.pool.api.bodies import SLICE_BYTES, read, read_query, read_requests
from rl_agent.pool.api.status import metrics_text, status_of
from rl_agent.pool.api.weights_api import WeightsApi, weights_offer
from rl_agent.pool.demand.gauge import TrainerStep
from rl_agent.pool.engines.link import EngineLink, HttpTransport, Transport
from rl_agent.pool.engines.tunnel_frames import MAX_FRAME_BYTES
from rl_agent.pool.engines.tunnel_server import TunnelTransport
from rl_agent.pool.problem import problem
from rl_agent.pool.runtime.runs import QueueFull
from rl_agent.pool.runtime.runtime import Runtime
from rl_agent.pool.runtime.service import Pool
from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.records import Engine, EngineOffer
from rl_agent.pool.scheduler.reports import NO_WEIGHTS, WeightsReport
from rl_agent.pool.schemas import (
    ENGINE_SECRET,
    BeatAnswer,
    BeatRequest,
    Cursor,
    DrainRequest,
    FleetRequest,
    LeaveRequest,
    ModelRequest,
    RegisterAnswer,
    RegisterRequest,
    StepRequest,
    SubmitAnswer,
)
from rl_agent.pool.settings import networks_of

LONGEST_WAIT_S = 3600.0
TUNNEL_PING_S = 2.0
MIN_SECRET, MAX_SECRET = 16, 200


class PoolApi:
    """The handlers; `session` reaches engines that have an address, and `kept` those with our route."""

    def __init__(
        self,
        config: PoolConfig,
        runtime: Runtime,
        session: aiohttp.ClientSession,
        versions: Path,
        kept: KeptConnections | None = None,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._session, self._kept = session, kept
        self._weights = WeightsApi(runtime, versions)
        self._tunnels: dict[str, TunnelTransport] = {}
        self._engine_networks = networks_of("allowed_engine_networks", config.allowed_engine_networks)

    @property
    def _pool(self) -> Pool:
        return self._runtime.pool

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/status", self.status),
            web.get("/metrics", self.metrics),
            web.get("/wanted", self.wanted),
            web.post("/fleets/{fleet}", self.fleet_reported),
            web.post("/engines", self.register),
            web.get("/engines/{engine}/tunnel", self.tunnel),
            web.post("/engines/{engine}/beat", self.beat),
            web.post("/engines/{engine}/drain", self.drain),
            web.post("/engines/{engine}/leave", self.leave),
            web.post("/model", self.model),
            *self._weights.routes(),
            web.post("/runs/{run}/requests", self.submit),
            web.get("/runs/{run}/samples", self.samples),
            web.post("/runs/{run}/step", self.step_ended),
            web.delete("/runs/{run}", self.drop),
        ]

    async def health(self, request: web.Request) -> web.Response:
        """Tell that the manager runs; the only route without a token."""
        return web.json_response({"status": "ok"})

    async def status(self, request: web.Request) -> web.Response:
        """Return the state of the pool; no prompts and no responses."""
        body = msgspec.json.encode(status_of(self._runtime, self._config))
        return web.Response(body=body, content_type="application/json")

    async def metrics(self, request: web.Request) -> web.Response:
        """Return the metrics as Prometheus text."""
        return web.Response(text=metrics_text(self._runtime), content_type="text/plain")

    async def wanted(self, request: web.Request) -> web.Response:
        """Return how many engines of each kind the pool wants, and why."""
        answer = self._runtime.scaling.answer().model_dump()
        return web.json_response(answer | {"may_drain": request[IS_OPERATOR]})

    async def fleet_reported(self, request: web.Request) -> web.Response:
        """Record which kinds of machines the provider of a `pool scale` does not give."""
        fleet = _name(request, "fleet")
        self._runtime.scaling.fleet_reported(fleet, await read(request, FleetRequest))
        return web.json_response({})

    async def step_ended(self, request: web.Request) -> web.Response:
        """Record how long the trainer waited in a step; return how many engines are wanted therefore."""
        _name(request, "run")
        step = await read(request, StepRequest)
        answer = self._runtime.scaling.step_ended(TrainerStep(**step.model_dump()))
        return web.json_response(answer.model_dump())

    async def register(self, request: web.Request) -> web.Response:
        """Register an engine with the pool."""
        registration = await read(request, RegisterRequest)
        if len(self._pool.state.engines) >= self._config.max_engines:
            raise problem(503, f"the pool has {self._config.max_engines} engines, as many as it takes")
        if registration.url is None and not registration.has_worker:
            raise problem(422, "url is missing: without a worker the manager must reach the engine itself")
        url = self._checked_url(registration.url, request.remote) if registration.url is not None else None
        offer = EngineOffer(
            engine_id=secrets.token_hex(16),
            name=registration.name if registration.has_worker or url is None else url,
            capacity=registration.capacity or self._config.default_capacity,
            price_per_hour=registration.price_per_hour,
            kind=registration.kind,
            secret=self._secret_for(request),
        )
        self._check_name(offer, request)
        transport: Transport
        if url is None:
            transport = self._tunnels[offer.engine_id] = TunnelTransport()
        else:
            transport = HttpTransport(self._session, url, registration.api_key, self._kept)
        weights = self._weights_report(registration.weights, request.remote) or NO_WEIGHTS
        self._pool.register(offer, EngineLink(transport), has_worker=registration.has_worker, weights=weights)
        config = self._config
        answer = RegisterAnswer(
            engine_id=offer.engine_id,
            secret=offer.secret,
            lease_s=config.lease_s,
            heartbeat_s=config.heartbeat_s,
        )
        return web.json_response(answer.model_dump(), status=201)

    def _secret_for(self, request: web.Request) -> str:
        """Return a new engine's secret: that of its worker, which so outlives this manager, or a new one."""
        secret = request.headers.get(ENGINE_SECRET)
        if secret is None:
            return secrets.token_hex(16)
        if not (secret.isascii() and secret.isprintable() and MIN_SECRET <= len(secret) <= MAX_SECRET):
            raise problem(422, f"{ENGINE_SECRET}: expected {MIN_SECRET} to {MAX_SECRET} printable characters")
        return secret

    def _check_name(self, offer: EngineOffer, request: web.Request) -> None:
        """Refuse a name that another worker has registered in the pool."""
        present = self._pool.find_engine(offer.name)
        if present is not None and not self._is_of(request, present):
            raise problem(
                409,
                f"{offer.name} is in the pool already: {ENGINE_SECRET} is not what its joining gave; choose"
                f" another name, or wait for the end of its lease of {self._config.lease_s:g} s",
            )

    def _checked_url(self, text: str, peer: str | None) -> str:
        try:
            url = URL(text)
            port = url.port
        except ValueError:
            raise problem(422, f"{text!r} is no URL") from None
        if url.scheme not in ("http", "https") or not url.host or not port or url.user:
            raise problem(422, f"url={text!r}: expected http://ADDRESS:PORT")
        check_address(url.host, peer, self._engine_networks)
        return str(url.origin())

    async def tunnel(self, request: web.Request) -> web.WebSocketResponse:
        """Open the connection over which a worker's engine is reached."""
        engine = self._engine(request)
        transport = self._tunnels.get(engine)
        if transport is None:
            raise problem(409, "this engine was registered with an address")
        socket = web.WebSocketResponse(heartbeat=TUNNEL_PING_S, max_msg_size=MAX_FRAME_BYTES, compress=False)
        await socket.prepare(request)
        for gone in [engine_id for engine_id in self._tunnels if engine_id not in self._pool.state.engines]:
            del self._tunnels[gone]
        await transport.serve(socket)
        return socket

    async def beat(self, request: web.Request) -> web.Response:
        """Renew the lease of an engine that has just answered its worker, or report its problem."""
        beat = await read(request, BeatRequest)
        engine_id = self._engine(request)
        weights = self._weights_report(beat.weights, request.remote)
        self._pool.handle(events.Beat(engine_id, beat.load, weights, beat.problem))
        state = self._pool.state
        engine = state.engines[self._engine(request)]  # its lease may have been over
        answer = BeatAnswer(
            state=engine.state.value,
            reason=engine.reason,
            model=state.model,
            weight_version=state.weight_version,
            weights=weights_offer(state, engine, request.remote),
            running=len(engine.running),
        )
        return web.json_response(answer.model_dump())

    def _weights_report(self, report: WeightsReport | None, peer: str | None) -> WeightsReport | None:
        """Return a worker's report; a source at another address than its own, as behind NAT, is left out."""
        if report is None or report.source is None:
            return report
        try:
            check_address(URL(report.source).host or "", peer, self._engine_networks)
        except web.HTTPException:
            return replace(report, source=None)
        return report

    async def drain(self, request: web.Request) -> web.Response:
        """Drain an engine: its requests leave at the end of their chunks, and it at the deadline."""
        drain = await read(request, DrainRequest)
        engine, until = self._engine(request, by_operator=True), self._pool.clock() + drain.deadline_s
        self._pool.handle(events.DrainAsked(engine, until, drain.reason))
        return web.json_response({"deadline_s": drain.deadline_s})

    async def leave(self, request: web.Request) -> web.Response:
        """Remove an engine that has ended."""
        departure = await read(request, LeaveRequest)
        engine = self._engine(request, by_operator=True)
        self._pool.handle(events.EngineEnded(engine, departure.reason, departure.is_crash))
        return web.json_response({})

    async def model(self, request: web.Request) -> web.Response:
        """Set the model that engines must serve from now on."""
        model = await read(request, ModelRequest)
        if model.weight_version < self._pool.state.weight_version and not model.is_rollback:
            raise problem(409, f"the pool is at weight version {self._pool.state.weight_version}")
        await self._runtime.want(model)
        return web.json_response({"weight_version": self._pool.state.weight_version})

    async def submit(self, request: web.Request) -> web.Response:
        """Submit requests of a run; an id that it knows is not submitted again."""
        name, limit = _name(request, "run"), self._config.max_open_requests
        items = await read_requests(request, max_requests=limit)
        try:
            accepted, known = await self._runtime.runs.submit(name, items)
        except QueueFull:
            raise problem(429, f"the pool has {limit} open requests, as many as it takes") from None
        return web.json_response(SubmitAnswer(accepted=accepted, known=known).model_dump(), status=202)

    async def samples(self, request: web.Request) -> web.StreamResponse:
        """Stream samples (`?after=CURSOR&min=N&wait_s=S`): N lines, fewer if no more will come."""
        name = _name(request, "run")
        run = self._runtime.runs.by_name.get(name)
        if run is None:
            raise problem(404, f"there is no run {name!r}")
        query = read_query(request, Cursor)
        if query.after > run.newest:
            raise problem(409, f"after={query.after}: the newest sample is {run.newest}")
        if query.after < run.acknowledged:
            words = f"after={query.after}: samples up to {run.acknowledged} were acknowledged before"
            raise problem(409, words)
        await self._runtime.runs.acknowledge(run, query.after)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(LONGEST_WAIT_S, query.wait_s)):
                await self._runtime.runs.wait(run, query.min)
        written = 0
        for sample in list(run.samples) if self._runtime.runs.is_due(run, query.min) else []:
            line = sample.model_dump_json().encode() + b"\n"
            await response.write(line)
            if (written := written + len(line)) > SLICE_BYTES:
                written = 0
                await asyncio.sleep(0)  # many samples leave time for others
        await response.write_eof()
        return response

    async def drop(self, request: web.Request) -> web.Response:
        """End a run: what is open is cancelled, what ended is forgotten."""
        await self._runtime.runs.drop(_name(request, "run"))
        return web.json_response({})

    def _engine(self, request: web.Request, *, by_operator: bool = False) -> str:
        """Return the engine's id, if its worker calls, or an operator where that is enough."""
        name = request.match_info["engine"]
        engine = self._pool.find_engine(name)
        if engine is None:
            raise problem(404, f"there is no engine {name[:200]!r}; register it")
        if not (self._is_of(request, engine) or (by_operator and request[IS_OPERATOR])):
            also = ", or the token of admin_token_file" if by_operator else ""
            raise problem(403, f"{engine.offer.name}: {ENGINE_SECRET} must be what its joining gave{also}")
        return engine.engine_id

    @staticmethod
    def _is_of(request: web.Request, engine: Engine) -> bool:
        return is_same_secret(request.headers.get(ENGINE_SECRET, ""), engine.offer.secret)


def _name(request: web.Request, of: str) -> str:
    name = request.match_info[of]
    if not 0 < len(name) <= 200 or not name.isprintable():
        raise problem(422, f"a {of}'s name has 1 to 200 printable characters")
    return name
