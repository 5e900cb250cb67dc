"""The worker of a rollout machine: starts an engine, joins it to a pool, and ends it in order.

    start engine ─► register ─► beat, and say if the engine does not answer ─► drain ─► leave ─► end engine
         ▲                         │ engine died: say so, start again            ▲ TERM, INT, a notice
         └─────────────────────────┴ pool wants another model: start on it ──────┘

An engine that shares its devices with a trainer (`turns`) drains and leaves at the end of each of its turns,
sleeps, and registers again at the next.

The worker only ever connects outward. Where the manager cannot reach this machine, the worker holds the
connection over which requests come (`tunnel`), and the engine listens on loopback alone.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from math import inf
from time import monotonic
from typing import Any

import aiohttp

from rl_agent.engine.server import reason_in
from rl_agent.errors import ConfigError, EngineDied, StoreError, WeightsError
from rl_agent.http.tls import trusting
from rl_agent.pool.engines.answers import StreamError
from rl_agent.pool.engines.link import CONTROL_TIMEOUT_S, EngineLink, HttpTransport
from rl_agent.pool.schemas import BeatAnswer, RegisterAnswer, WeightsOffer
from rl_agent.weights.load.base import RunningServer
from rl_agent.weights.load.sglang_load import SglangServer
from rl_agent.worker.engine_process import EngineProcess, describe_exit
from rl_agent.worker.engine_turns import EngineTurns, sleep_until_turn
from rl_agent.worker.manager_client import ManagerCalls, words_of
from rl_agent.worker.preemption import NoticeSource, wait_for_notice
from rl_agent.worker.settings import WorkerSettings
from rl_agent.worker.start_report import StartReport
from rl_agent.worker.tunnel_client import WorkerTunnel
from rl_agent.worker.weight_cache import HostWeights
from rl_agent.worker.weight_follower import EngineWeights

log = logging.getLogger(__name__)

POLL_S = 0.25
LONGEST_PAUSE_S = 60.0
END_S = 5.0
"""The part of a preemption notice that is kept to leave the pool and end the engine."""
TAKES_NO_WEIGHTS = "its engine takes no weights while it runs: it does not listen on loopback"


class ModelChanged(Exception):
    """The pool wants another model than the engine serves."""


class EngineRemoved(EngineDied):
    """The pool has no use for the engine, which works."""


class Worker:
    def __init__(self, settings: WorkerSettings, session: aiohttp.ClientSession) -> None:
        self._settings = settings
        self._session = session
        self._manager = ManagerCalls(session, settings.manager, settings.read_token, settings.manager_file)
        self._engine_id: str | None = None
        self._patience_s = CONTROL_TIMEOUT_S
        """Longest wait for a sign of life of the engine: a lease, if that is shorter."""
        self._failures = 0
        self._drain_s = settings.drain_s
        self._has_warned = False
        self._has_warned_of_name = False
        self._model = settings.model
        self._jobs: asyncio.TaskGroup | None = None
        self._weights: EngineWeights | None = None
        self._host: HostWeights | None = None

    async def run(self, leaving: asyncio.Event) -> None:
        """Serve until `leaving` is set, then leave in order.

        Raises ConfigError if the manager refuses or the engine cannot be started, RetryLater if no manager
        came in time.
        """
        notice = None
        async with AsyncExitStack() as stack:
            if self._settings.command.loads_weights:
                self._host = stack.enter_context(self._host_weights())
            jobs = await stack.enter_async_context(asyncio.TaskGroup())
            self._jobs = jobs
            if self._settings.notice is not None:
                notice = jobs.create_task(self._watch_notice(self._settings.notice, leaving))
            while not leaving.is_set():
                model = self._model or await self._wanted_model(leaving)
                if model is not None:
                    await self._serve_model(model, leaving)
            if notice is not None:
                notice.cancel()

    def _host_weights(self) -> HostWeights:
        own, tls = self._settings, trusting(self._settings.tls_ca)
        return HostWeights(own.weights, own.address, own.manager, lambda: self._manager.headers, tls)

    async def _watch_notice(self, source: NoticeSource, leaving: asyncio.Event) -> None:
        notice = await wait_for_notice(source, self._session)
        self._drain_s = min(self._drain_s, max(0.0, notice.left_s - END_S))
        log.warning("preemption notice: %s; draining for at most %.0f s", notice.words, self._drain_s)
        leaving.set()

    async def _serve_model(self, model: str, leaving: asyncio.Event) -> None:
        """Run the engine once, from its start to its end."""
        settings = self._settings
        try:
            await asyncio.to_thread(settings.check_model, model)
            engine = await settings.start_engine(model)
        except (StoreError, EngineDied) as error:
            await self._has_failed(error, leaving)
            return
        log.info(
            "engine %s starts on %s (process %d, log %s)", settings.name, model, engine.pid, settings.log
        )
        try:
            link = self._link(engine)
            await self._wait_started(engine, link, leaving)
            if not leaving.is_set():
                async with self._following_weights(engine):
                    await self._stay_in_turns(engine, link, leaving)
                await self._report_end("left in order", is_crash=False)
        except EngineDied as error:
            if not isinstance(error, EngineRemoved):
                await engine.lose()
            await self._has_failed(error, leaving)
        except ModelChanged as error:
            log.info("engine %s: %s", settings.name, error)
            self._model = None  # whatever it wants when the engine has ended
            await self._report_end(str(error), is_crash=False)
        finally:
            await engine.end()
            if settings.turns is not None:
                settings.turns.rest()

    async def _has_failed(self, error: Exception, leaving: asyncio.Event) -> None:
        self._failures += 1
        log.warning("engine %s: %s", self._settings.name, error)
        await self._report_end(str(error), is_crash=True)
        await _pause(min(LONGEST_PAUSE_S, 2.0**self._failures), leaving)

    @asynccontextmanager
    async def _following_weights(self, engine: EngineProcess) -> AsyncIterator[None]:
        """Keep the engine's weights up to date while the block runs, if it can load them."""
        if self._host is None:
            yield
            return
        assert self._jobs is not None
        self._weights = EngineWeights(self._host, self._server(engine), self._report_weights)
        self._follow_weights = self._jobs.create_task(self._weights.run(), name="weights")
        listening = self._jobs.create_task(self._weights.listen(self._manager.hear_of_weights))
        try:
            yield
        finally:
            listening.cancel()
            self._follow_weights.cancel()
            self._weights = None

    async def _report_weights(self) -> WeightsOffer | None:
        _, answer = await self._post_beat({"weights": self._weights_report()})
        return answer.weights if answer is not None else None

    async def _post_beat(self, body: dict[str, Any]) -> tuple[int, BeatAnswer | None]:
        status, payload = await self._manager.call("POST", f"engines/{self._engine_id}/beat", body)
        return status, BeatAnswer.model_validate(payload) if status == 200 else None

    def _server(self, engine: EngineProcess) -> RunningServer:
        if self._settings.command.kind == "vllm":
            return engine.vllm(self._session)
        return SglangServer(self._session, engine.url, engine.model)

    def _link(self, engine: EngineProcess) -> EngineLink:
        key = self._settings.command.api_key
        return EngineLink(HttpTransport(self._session, engine.url, key))

    async def _wait_started(self, engine: EngineProcess, link: EngineLink, leaving: asyncio.Event) -> None:
        """Wait for the engine's turn and start. Raises ConfigError for the first, else EngineDied."""
        report = StartReport(self._settings.name, self._settings.log, self._settings.start_timeout_s)
        try:
            if (turns := self._settings.turns) is not None:
                await turns.begin(leaving, lambda: self._check_alive(engine))
                engine.release()
            async with asyncio.timeout(self._settings.start_timeout_s):
                while not leaving.is_set():
                    self._check_alive(engine)
                    report.look()
                    try:
                        await link.probe()
                        return
                    except StreamError:
                        await _pause(POLL_S, leaving)
        except (TimeoutError, EngineDied) as error:
            words = str(error) or f"not ready within {self._settings.start_timeout_s:g} s"
            if self._engine_id is None:
                path = self._settings.log
                raise ConfigError(
                    f"the engine does not start: {words}: {reason_in(path)}; its log is {path}"
                ) from error
            raise EngineDied(words) from error

    def _check_alive(self, engine: EngineProcess) -> None:
        if engine.exit_status is not None:
            raise EngineDied(f"its process ended with {describe_exit(engine.exit_status)}")
        if self._weights is not None and self._follow_weights.done():
            raise EngineDied(f"it has no complete version of the weights: {self._follow_weights.result()}")

    async def _stay_in_turns(self, engine: EngineProcess, link: EngineLink, leaving: asyncio.Event) -> None:
        """Serve in the pool during the engine's turns and sleep during the trainer's; raises like `_stay`."""
        assert self._jobs is not None
        turns = self._settings.turns
        if turns is None:
            await self._stay(engine, link, leaving)
            return
        while not leaving.is_set():
            turns.served()
            async with turns.until_over(leaving, self._jobs) as over:
                await self._stay(engine, link, over)
            if not leaving.is_set():
                await self._report_end("it is the trainer's turn", is_crash=False)
                await self._sleep(engine, link, turns, leaving)

    async def _sleep(
        self, engine: EngineProcess, link: EngineLink, turns: EngineTurns, leaving: asyncio.Event
    ) -> None:
        """Sleep until the engine's next turn; it keeps its weights. Raises EngineDied."""
        assert self._weights is not None
        async with self._weights.kept():
            try:
                await sleep_until_turn(
                    turns, engine.vllm(self._session), link, lambda: self._check_alive(engine), leaving
                )
            except WeightsError as error:
                raise EngineDied(f"it cannot sleep during the trainer's turn: {error}") from error

    async def _stay(self, engine: EngineProcess, link: EngineLink, leaving: asyncio.Event) -> None:
        """Serve in the pool until `leaving` is set. Raises EngineDied, ModelChanged."""
        while not leaving.is_set():
            answer = None
            with suppress(StreamError):
                await link.look(self._patience_s)
                answer = await self._register(engine)
            if answer is None:
                await _pause(POLL_S, leaving)
                self._check_alive(engine)
                continue
            tunnel = None if self._settings.is_direct else self._start_tunnel(engine, answer.engine_id)
            try:
                await self._beat_until(engine, link, answer.heartbeat_s, leaving)
                if leaving.is_set():
                    await self._drain(engine, link)
            finally:
                if tunnel is not None:
                    tunnel.cancel()

    def _start_tunnel(self, engine: EngineProcess, engine_id: str) -> "asyncio.Task[None]":
        assert self._jobs is not None
        carrier = WorkerTunnel(self._session, self._manager, engine_id, engine)
        return self._jobs.create_task(carrier.run(), name="tunnel")

    async def _beat_until(
        self, engine: EngineProcess, link: EngineLink, heartbeat_s: float, leaving: asyncio.Event
    ) -> None:
        """Send heartbeats until `leaving` is set or the engine is unknown; raises like `_stay`."""
        assert self._jobs is not None
        watch_death = self._jobs.create_task(engine.wait(), name="engine's end")
        watch_leave = self._jobs.create_task(leaving.wait(), name="leave")
        watched: list[asyncio.Task[Any]] = [watch_death, watch_leave]
        if self._weights is not None:
            watched.append(self._follow_weights)
        try:
            while not leaving.is_set() and (await self._beat(engine, link))[0] != 404:
                is_waiting = self._weights is not None and self._weights.is_waiting
                pause_s = min(POLL_S, heartbeat_s) if is_waiting else heartbeat_s
                await asyncio.wait(watched, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                self._check_alive(engine)
        finally:
            watch_death.cancel()
            watch_leave.cancel()

    async def _beat(self, engine: EngineProcess, link: EngineLink) -> tuple[int, BeatAnswer | None]:
        """Send a heartbeat; return the manager's status and answer, 0 if it does not answer."""
        load, problem = None, ""
        try:
            load = await link.look(self._patience_s)
        except StreamError as error:
            log.warning("engine %s does not answer: %s", self._settings.name, error)
            problem = str(error)[:500]
        body = {"load": asdict(load) if load else None, "weights": self._weights_report(), "problem": problem}
        status, answer = await self._post_beat(body)
        if answer is not None:
            self._failures = 0 if answer.state == "ready" else self._failures
            self._follow(answer, engine)
        if status == 404 and self._weights is not None and self._weights.problem:
            raise EngineRemoved(f"the pool removed it: {self._weights.problem}")
        return status, answer

    def _weights_report(self) -> dict[str, Any]:
        return self._weights.report() if self._weights is not None else {"problem": TAKES_NO_WEIGHTS}

    def _follow(self, answer: BeatAnswer, engine: EngineProcess) -> None:
        """Follow what the pool wants. Raises ModelChanged if that is a model this worker may start on."""
        if self._weights is not None and self._host is not None:
            self._host.follow(str(self._manager.url.origin()))
            self._weights.offer(answer.weights)
        has_strange_weights = (
            self._weights is not None and self._weights.has_loaded and answer.weights is None
        )
        if answer.state != "loading" or (answer.model == engine.model and not has_strange_weights):
            return
        if self._settings.model is None or answer.weight_version > 0:
            raise ModelChanged(f"the pool wants {answer.model} (version {answer.weight_version})")
        if not self._has_warned:
            self._has_warned = True
            log.warning("the pool wants %s; this worker was told to serve %s", answer.model, engine.model)

    async def _register(self, engine: EngineProcess) -> RegisterAnswer | None:
        """Register the engine; None if that fails now. Raises ConfigError if refused, RetryLater."""
        settings = self._settings
        body: dict[str, Any] = {
            "name": settings.name,
            "capacity": settings.capacity,
            "price_per_hour": settings.price_per_hour,
            "kind": settings.kind,
            "has_worker": True,
            "weights": self._weights_report(),
        }
        if settings.is_direct:
            body |= {"url": engine.url, "api_key": settings.command.api_key}
        status, payload = await self._manager.call("POST", "engines", body)
        self._check_patience(status)
        if status in (403, 422) or (status == 401 and self._engine_id is None):
            raise ConfigError(f"the manager at {self._manager.url} refuses: {words_of(payload)}")
        if status == 409 and not self._has_warned_of_name:
            self._has_warned_of_name = True
            log.warning(
                "the manager at %s does not accept the engine yet: %s", self._manager.url, words_of(payload)
            )
        if status != 201:
            return None
        answer = RegisterAnswer.model_validate(payload)
        self._engine_id, self._has_warned_of_name = answer.engine_id, False
        if settings.shared is not None:
            settings.shared.has_joined = True
        self._patience_s = min(CONTROL_TIMEOUT_S, answer.lease_s)
        log.info("engine %s is registered at %s", settings.name, self._manager.url)
        return answer

    def _check_patience(self, status: int) -> None:
        """Raises RetryLater, ConfigError for a manager that was never there; see `ManagerCalls`."""
        shared, patience_s = self._settings.shared, self._settings.manager_timeout_s
        if status == 0 and self._engine_id is None:
            self._manager.check_patience(inf if shared is not None and shared.has_joined else patience_s)

    async def _wanted_model(self, leaving: asyncio.Event) -> str | None:
        """Return the model that the pool wants. Raises ConfigError if there is none, RetryLater."""
        status, payload = await self._manager.call("GET", "status")
        self._check_patience(status)
        if status == 0 or (status != 200 and self._engine_id is not None):
            await _pause(1.0, leaving)
            return None
        if status != 200:
            raise ConfigError(f"the manager at {self._manager.url} refuses: {words_of(payload)}")
        if not payload["model"]:
            raise ConfigError("the pool has no model yet: give --model FOLDER_OR_HUB_NAME")
        return str(payload["model"])

    async def _drain(self, engine: EngineProcess, link: EngineLink) -> None:
        """Wait until the pool has moved the engine's requests, each at the end of its chunk.

        At the end of a turn the trainer waits for the devices: there they leave at once. Raises EngineDied.
        """
        drain_s = self._drain_s if self._settings.turns is None else 0.0
        until = monotonic() + drain_s
        body = {"deadline_s": drain_s, "reason": "the worker was told to leave"}
        status, _ = await self._manager.call("POST", f"engines/{self._engine_id}/drain", body)
        if status != 200:
            return
        while monotonic() < until:
            status, answer = await self._beat(engine, link)
            if status == 404 or (answer is not None and not answer.running):
                return
            await asyncio.sleep(POLL_S)
            self._check_alive(engine)

    async def _report_end(self, reason: str, *, is_crash: bool) -> None:
        if self._engine_id is not None:
            body = {"reason": reason[:500], "is_crash": is_crash}
            await self._manager.call("POST", f"engines/{self._engine_id}/leave", body)


async def _pause(seconds: float, leaving: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(seconds):
            await leaving.wait()
    except TimeoutError:
        return
