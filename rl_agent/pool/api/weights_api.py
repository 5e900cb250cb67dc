"""Handles the manager's routes of published weights: whose they are, what engines must load, the bytes."""

import time
from pathlib import Path

from aiohttp import web
from yarl import URL

from rl_agent.http.tokens import is_same_secret
from rl_agent.pool.api.auth import is_local
from rl_agent.pool.api.bodies import read
from rl_agent.pool.problem import problem
from rl_agent.pool.runtime.runtime import Runtime, weights_of
from rl_agent.pool.runtime.service import Pool
from rl_agent.pool.scheduler.records import Engine
from rl_agent.pool.scheduler.state import PoolState
from rl_agent.pool.scheduler.weight_versions import (
    is_of_a_manager,
    is_superseded,
    next_publisher,
    sources_for,
    takes,
)
from rl_agent.pool.schemas import (
    NEWS_S,
    NO_DIGEST,
    TRANSFER_TOKEN,
    PublisherAnswer,
    PublisherRequest,
    PublisherTaken,
    WantedWeights,
    WeightsAnswer,
    WeightsOffer,
    WeightsRequest,
)
from rl_agent.weights.server.http_server import version_file
from rl_agent.weights.settings import trainer_folders
from rl_agent.weights.store.store import Snapshot, having, version_name


class WeightsApi:
    """The handlers; `versions` is the folder below which trainers of this host have their stores."""

    def __init__(self, runtime: Runtime, versions: Path) -> None:
        self._runtime = runtime
        self._versions = versions
        self._snapshot: Snapshot | None = None

    @property
    def _pool(self) -> Pool:
        return self._runtime.pool

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/publishers", self.take_place),
            web.post("/weights", self.weights),
            web.get("/weights/newer-than/{digest}", self.newer_weights),
            web.get("/weights/{version}/{file}", self.weights_file),
        ]

    async def take_place(self, request: web.Request) -> web.Response:
        """Take the place of whoever published weights before: what those announce is refused from now on."""
        await read(request, PublisherRequest)
        number = next_publisher(self._pool.state, _clock_ms())
        await self._runtime.want(PublisherTaken(publisher=number))
        return web.json_response(PublisherAnswer(publisher=number).model_dump(), status=201)

    async def weights(self, request: web.Request) -> web.Response:
        """Set the weight version that engines must load from now on."""
        body = await read(request, WeightsRequest)
        state, weights = self._pool.state, weights_of(body)
        if not is_of_a_manager(body.publisher or 0, state, _clock_ms()):
            raise problem(422, f"publisher: {body.publisher} was given by no POST /publishers")
        if (body.publisher or 0) > state.publisher:  # an earlier manager without a journal gave the number
            await self._runtime.want(PublisherTaken(publisher=body.publisher))
        is_accepted, is_refused = takes(state, weights), is_superseded(state, weights)
        if is_accepted and weights != state.weights:
            await self._runtime.want(body)
        answer = WeightsAnswer(
            weight_version=state.weight_version, is_accepted=is_accepted, is_superseded=is_refused
        )
        return web.json_response(answer.model_dump())

    async def newer_weights(self, request: web.Request) -> web.Response:
        """Return the digest that engines must load once it is another one; `none`: no published weights.

        The answer comes at the latest after 20 s.
        """
        digest = request.match_info["digest"]
        newest = await self._pool.wait_for_weights("" if digest == NO_DIGEST else digest, NEWS_S)
        return web.json_response(WantedWeights(digest=newest or NO_DIGEST).model_dump())

    async def weights_file(self, request: web.Request) -> web.StreamResponse:
        """Send a file of the wanted weight version, or a range of it, if its trainer is on this host."""
        target, snapshot = self._pool.state.weights, self._snapshot
        if target is None or request.match_info["version"] != version_name(target.weight_version):
            raise problem(404, "this is not the weight version that engines must load")
        if not is_same_secret(request.headers.get(TRANSFER_TOKEN, ""), target.transfer_token):
            raise problem(403, f"{TRANSFER_TOKEN} is not the token of this transfer")
        if snapshot is None or snapshot.manifest.digest != target.digest or not snapshot.folder.exists():
            folders = trainer_folders(self._versions)
            snapshot = self._snapshot = next(having(folders, target.weight_version, target.digest), None)
        if snapshot is None:
            raise problem(404, "the weight version is not on the manager's host")
        return version_file(snapshot, request.match_info["file"])


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


def weights_offer(state: PoolState, engine: Engine, peer: str | None) -> WeightsOffer | None:
    """Return the weight version to load, with sources while the worker needs them."""
    target = state.weights
    if target is None:
        return None
    has_it = (engine.weights.weight_version, engine.weights.digest) == (target.weight_version, target.digest)
    needs_sources = not has_it and not engine.weights.is_fetching
    addresses = sources_for(state, engine) if needs_sources else ()
    # Loopback leads another machine to itself.
    sources = tuple(address for address in addresses if is_local(peer) or not is_local(URL(address).host))
    return WeightsOffer(
        weight_version=target.weight_version,
        digest=target.digest,
        delta_digest=target.delta_digest,
        transfer_token=target.transfer_token,
        sources=sources,
        publisher_addresses=sum(address in target.sources for address in sources),
        useful_from=target.useful_from,
        may_load=target.finish_within_s is None or engine.is_switching,
    )
