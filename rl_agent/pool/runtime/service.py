"""Async runtime of the scheduler: carries out its commands and feeds events back.

    HTTP ─► tell(event) ─► machine.step ─► Generate │ Abort │ Probe  ─► jobs, which tell what they see
                                       └─► Ended ─► journal ─► run's samples, or whoever waits

`tell` is synchronous and never re-enters: carrying out a command only starts or cancels a job. Everything
runs on one event loop inside `run`, whose task group owns all jobs.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Container, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rl_agent.config.plan import PoolConfig
from rl_agent.engine.tokens import usual_length_of, vocabulary_of
from rl_agent.pool.engines.answers import Refused, StreamError, WrongAnswer
from rl_agent.pool.engines.link import EngineLink
from rl_agent.pool.runtime.images import ImageStore
from rl_agent.pool.scheduler import events
from rl_agent.pool.scheduler.machine import step
from rl_agent.pool.scheduler.migration import params_of, prompt_of, stop_strings, tokens_left
from rl_agent.pool.scheduler.records import Engine, EngineOffer, EngineState, Request, RequestId
from rl_agent.pool.scheduler.reports import NO_WEIGHTS, WeightsReport
from rl_agent.pool.scheduler.state import PoolState
from rl_agent.pool.settings import rules_of
from rl_agent.weights.store.tensor_sources import local_folder

log = logging.getLogger(__name__)
NEWEST_MOVES = 32
"""Moves of requests that `/status` names."""
REPORTS_PER_LEASE = 20
"""Seconds between two events about bytes that keep coming."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts from the folder of a model; None where it does not say."""

    vocab_size: int | None = None
    usual_length: int | None = None
    """The length of a response where nobody says how long it may be."""


@dataclass(slots=True)
class EngineConnection:
    """The connection to an engine."""

    offer: EngineOffer
    link: EngineLink
    has_worker: bool
    bytes_at: float = 0.0
    """Time of the last event about bytes from there."""


class Faults:
    """The number of requests and events that were set aside, and the newest reasons."""

    def __init__(self) -> None:
        self.count = 0
        self.newest: deque[str] = deque(maxlen=16)

    def add(self, reason: str) -> None:
        self.count += 1
        self.newest.append(reason[:500])


class Pool:
    """Runtime of one pool. `on_ended` is called for every request that ended and that no client watches."""

    def __init__(
        self,
        config: PoolConfig,
        *,
        on_ended: Callable[[Request], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.state = PoolState(rules_of(config))
        if config.model is not None:
            self.state.model, self.state.model_version = config.model, config.weight_version
        self.clock = clock
        self.links: dict[str, EngineConnection] = {}
        self.watches: dict[RequestId, asyncio.Event] = {}
        """Set when a request that a client follows ends, and, if it is read along, as it grows."""
        self.faults = Faults()
        self.images = ImageStore()
        self.num_unread = 0
        """Calls whose prompt is a text that waits for an engine to read it: no requests yet."""
        self.on_engine_changed: Callable[[str, str, EngineState, str, int | None], None] = lambda *_: None
        """Is told name, id, state, reason and weight version of an engine whose state has changed."""
        self.on_moved: Callable[[events.Moved], None] = lambda _: None
        self.newest_moves: deque[tuple[float, events.Moved]] = deque(maxlen=NEWEST_MOVES)
        """The newest moves and their times, by the pool's clock."""
        self._on_ended = on_ended
        self._facts: dict[str, ModelFacts] = {}
        """The facts about the pool's model."""
        self._attempts: dict[tuple[RequestId, int], asyncio.Task[None]] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._jobs: asyncio.TaskGroup | None = None
        self._is_over = False
        self._next_fallbacks = 1
        """Failures of the placement policy at which it is logged next."""
        self._weights_changed = asyncio.Event()

    async def run(self, ready: asyncio.Event) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as jobs:
            self._jobs = jobs
            ready.set()
            try:
                await asyncio.Event().wait()
            finally:
                self._is_over = True
                self._weights_changed.set()
                if self._timer is not None:
                    self._timer.cancel()

    def start(self, job: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """Start a job that ends with the pool."""
        assert self._jobs is not None, "the pool is not running"
        return self._jobs.create_task(job, name=name)

    def handle(self, event: events.Event) -> None:
        if self._is_over:
            return
        now, weights = self.clock(), self.state.weights
        for command in step(self.state, event, now):
            self._carry_out(command)
        if self.state.placement.fallbacks >= self._next_fallbacks:
            self._log_policy_fault()
        if self.state.weights is not weights:
            self._weights_changed.set()
            self._weights_changed = asyncio.Event()
        self._set_timer()

    def _log_policy_fault(self) -> None:
        """Log that the placement policy fails: the first time, then about the 10th, the 100th."""
        placement = self.state.placement
        self._next_fallbacks = placement.fallbacks * 10
        name, fault, times = self.config.policy, placement.fault, placement.fallbacks
        log.warning("policy=%s: %s; least_work decides instead (failures: %d)", name, fault, times)

    async def wait_for_weights(self, digest: str, longest_s: float) -> str:
        """Wait until the pool wants weights of another digest than this one; return that, empty: none."""
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                while self._wanted_digest == digest and not self._is_over:
                    await self._weights_changed.wait()
        return self._wanted_digest

    @property
    def _wanted_digest(self) -> str:
        return self.state.weights.digest if self.state.weights is not None else ""

    # What callers ask ---------------------------------------------------------------------------------------

    def register(
        self,
        offer: EngineOffer,
        link: EngineLink,
        *,
        has_worker: bool,
        weights: WeightsReport = NO_WEIGHTS,
    ) -> None:
        self.links[offer.engine_id] = EngineConnection(offer, link, has_worker)
        link.on_bytes = partial(self._bytes_arrived, offer.engine_id)
        link.read_images = self.images.read
        self.handle(events.Registered(offer, weights))
        if not has_worker:
            job = self._keep(offer.engine_id, link)
            self._keepers[offer.engine_id] = self.start(job, f"keep {offer.name}")

    def release(self, request_ids: list[RequestId]) -> None:
        """Forget requests that their client no longer follows; those still open are cancelled."""
        for request_id in request_ids:
            request = self.state.requests.get(request_id)
            if request is not None and request.is_open:
                self.handle(events.Cancelled(request_id))
            self.watches.pop(request_id, None)
        self.handle(events.Forgotten(tuple(request_ids)))

    def ready_link(self, besides: Container[EngineLink] = ()) -> EngineLink | None:
        """Return the least busy ready engine besides these, for requests other than responses."""
        ready = sorted(self.state.living(EngineState.READY), key=lambda engine: len(engine.running))
        usable = (engine for engine in ready if not (engine.is_doubted or engine.is_quarantined))
        links = (self.links[engine.engine_id].link for engine in usable)
        return next((link for link in links if link not in besides), None)

    def find_engine(self, name_or_id: str) -> Engine | None:
        engine = self.state.engines.get(name_or_id)
        by_name = (e for e in self.state.engines.values() if e.offer.name == name_or_id)
        return engine or next(by_name, None)

    def facts_of(self, model: str) -> "ModelFacts":
        """Return what is known about the pool's model."""
        return self._facts.get(model, ModelFacts())

    def open_requests(self) -> int:
        account = self.state.account
        return account.submitted - account.completed - account.failed

    # What the machine commands ------------------------------------------------------------------------------

    def _carry_out(self, command: events.PoolCommand) -> None:
        match command:
            case events.Generate(request_id, attempt, engine_id):
                job = self._generate(self.state.requests[request_id], attempt, engine_id)
                self._attempts[request_id, attempt] = self.start(job, f"{request_id.name} at {engine_id[:8]}")
            case events.Abort(request_id, attempt):
                task = self._attempts.pop((request_id, attempt), None)
                if task is not None:
                    task.cancel()
            case events.ProbeEngine(engine_id):
                self.start(self._probe(engine_id), f"probe {engine_id[:8]}")
            case events.Ended(request_id):
                self._ended(self.state.requests[request_id])
            case events.EngineChanged(engine_id, state, reason):
                self._engine_changed(engine_id, state, reason)
            case events.Moved():
                self.newest_moves.append((self.state.now, command))
                self.on_moved(command)
            case events.SetAside(reason):
                log.error("set aside: %s", reason)
                self.faults.add(reason)

    def _ended(self, request: Request) -> None:
        if request.failure:
            log.info("request %s failed: %s", request.request_id, request.failure)
        watch = self.watches.get(request.request_id)
        if watch is not None:
            watch.set()
        else:
            self._on_ended(request)

    def _engine_changed(self, engine_id: str, state: EngineState, reason: str) -> None:
        reached = self.links[engine_id]
        engine = self.state.engines.get(engine_id)
        version = engine.weight_version if engine else None
        self.on_engine_changed(reached.offer.name, engine_id, state, reason, version)
        offer, reason = reached.offer, f": {reason}" if reason else ""
        log.info("engine %s (%s) is %s%s", offer.name, engine_id[:8], state.value, reason)
        if state is EngineState.GONE:
            del self.links[engine_id]
            if not reached.has_worker and self._was_silent(engine_id):
                self.start(self._await_return(offer, reached.link), f"await {offer.name}")
            keeper = self._keepers.pop(engine_id, None)
            if keeper is not None:
                keeper.cancel()

    def _was_silent(self, engine_id: str) -> bool:
        """Return whether an engine's lease had ended when it was dropped."""
        gone = (engine for engine in reversed(self.state.departed) if engine.engine_id == engine_id)
        engine = next(gone, None)
        return engine is None or engine.lease_until <= self.clock()

    def _set_timer(self) -> None:
        due = self.state.wake_at()
        if due is None or due >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        delay = max(0.0, due - self.clock())
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self.handle(events.Tick())

    # Jobs ---------------------------------------------------------------------------------------------------

    async def _generate(self, request: Request, attempt: int, engine_id: str) -> None:
        """Run one attempt, from the request to the event that ends it."""
        request_id = request.request_id
        try:
            await self._stream(request, attempt, engine_id)
        except Refused as error:
            self.handle(events.Broken(request_id, attempt, str(error), is_refusal=True))
        except StreamError as error:
            is_wrong = isinstance(error, WrongAnswer)
            self.handle(events.Broken(request_id, attempt, str(error), is_wrong_answer=is_wrong))
        except Exception as error:
            log.exception("attempt %d of %s", attempt, request_id)
            self.handle(events.Broken(request_id, attempt, f"{type(error).__name__} in the manager"))
        finally:
            self._attempts.pop((request_id, attempt), None)

    async def _stream(self, request: Request, attempt: int, engine_id: str) -> None:
        reached, engine = self.links.get(engine_id), self.state.engines.get(engine_id)
        if reached is None or engine is None or request.attempt != attempt:
            return
        request_id, left = request.request_id, tokens_left(request, engine.max_model_len)
        stops = stop_strings(request.order.params)
        is_one_chunk = left <= request.interval and not stops and not request.order.is_read_along
        stream = reached.link.generate(
            prompt_of(request),
            left,
            params_of(request),
            f"{request_id}-{attempt}",
            token_by_token=bool(stops),
            stream_interval=None if is_one_chunk else request.interval,
            needs_text=request.order.needs_text,
            needs_names=request.order.needs_names,
            vocab_size=request.order.vocab_size or self.facts_of(engine.model).vocab_size,
            images=request.order.images,
        )
        async with aclosing(stream):
            async for chunk in stream:
                names = chunk.names if request.order.needs_names else ()
                parts = (chunk.token_ids, chunk.logprobs, chunk.text, names, chunk.prompt_token_ids)
                ending = (chunk.finish_reason, chunk.stop_reason)
                self.handle(events.Progress(request_id, attempt, *parts, *ending))
                if request.order.is_read_along and (watch := self.watches.get(request_id)) is not None:
                    watch.set()

    def _bytes_arrived(self, engine_id: str) -> None:
        """Report bytes from an engine: they renew its lease before they make a whole token."""
        reached, now = self.links.get(engine_id), self.clock()
        if reached is not None and now - reached.bytes_at >= self.config.lease_s / REPORTS_PER_LEASE:
            reached.bytes_at = now
            self.handle(events.BytesArrived(engine_id))

    async def _probe(self, engine_id: str) -> None:
        reached = self.links.get(engine_id)
        if reached is None:
            return
        try:
            info = await reached.link.probe()
            await self._learn_facts(info.model)
        except StreamError as error:
            self.handle(events.ProbeFailed(engine_id, str(error)))
        except Exception as error:  # an engine may answer what nobody has thought of; that is its own failure
            log.exception("probe of %s", engine_id[:8])
            self.handle(events.ProbeFailed(engine_id, f"its answer raised {type(error).__name__}"))
        else:
            self.handle(events.Probed(engine_id, info.model, info.max_model_len))

    async def _learn_facts(self, model: str) -> None:
        """Read the folder of the pool's model, if it can be read here."""
        if model not in self._facts and self.state.model in ("", model):
            self._facts = {model: await asyncio.to_thread(_facts_of, model)}

    async def _keep(self, engine_id: str, link: EngineLink) -> None:
        """Send heartbeats for an engine that has no worker, by asking it."""
        while True:
            self.handle(await self._look(engine_id, link))
            await asyncio.sleep(self.config.heartbeat_s)

    async def _look(self, engine_id: str, link: EngineLink) -> events.Beat:
        try:
            return events.Beat(engine_id, await link.look(self.config.lease_s / 2))
        except StreamError as error:
            return events.Beat(engine_id, problem=str(error))
        except Exception as error:
            log.exception("look at %s", engine_id[:8])
            return events.Beat(engine_id, problem=f"its answer raised {type(error).__name__}")

    async def _await_return(self, offer: EngineOffer, link: EngineLink) -> None:
        """Register an engine without a worker again, if it answers after its lease has ended."""
        deadline = self.clock() + self.config.start_timeout_s
        while (await self._look(offer.engine_id, link)).problem:
            if self.clock() > deadline:
                return
            await asyncio.sleep(self.config.probe_interval_s)
        if not any(engine.offer.name == offer.name for engine in self.state.engines.values()):
            self.register(replace(offer, engine_id=secrets.token_hex(16)), link, has_worker=False)


def _facts_of(model: str) -> ModelFacts:
    folder: Path | None = Path(model)
    if not Path(model).is_absolute() and "/" in model:
        try:
            folder = local_folder(model)
        except Exception:  # the hub's library has many ways to say that it has no such model
            folder = None
    return ModelFacts() if folder is None else ModelFacts(vocabulary_of(folder), usual_length_of(folder))
