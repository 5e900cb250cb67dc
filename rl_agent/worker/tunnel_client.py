"""The worker's end of the tunnel: forwards the manager's requests to the local engine."""

import asyncio
import logging
from contextlib import suppress
from functools import partial

import aiohttp
from yarl import URL

from rl_agent.pool.engines import tunnel_frames
from rl_agent.weights.load.vllm_names import SLOT_HEADER
from rl_agent.worker.engine_process import EngineProcess
from rl_agent.worker.manager_client import ManagerCalls

log = logging.getLogger(__name__)
RECONNECT_S = 0.5
PING_S = 2.0


class WorkerTunnel:
    """The worker's tunnel; `run` keeps one connection to the manager open until cancelled."""

    def __init__(
        self, session: aiohttp.ClientSession, manager: ManagerCalls, engine_id: str, engine: EngineProcess
    ) -> None:
        self._session = session
        self._manager = manager
        self._engine_id = engine_id
        self._engine = URL(engine.url)
        slot = {SLOT_HEADER: str(engine.slot)} if engine.slot else {}
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"} | slot

    async def run(self) -> None:
        """Keep the connection open, and connect again whenever it breaks."""
        problem = ""
        while True:
            try:
                async with self._session.ws_connect(
                    self._manager.url / "engines" / self._engine_id / "tunnel",
                    headers=self._manager.engine_headers,
                    heartbeat=PING_S,
                    max_msg_size=tunnel_frames.MAX_FRAME_BYTES,
                ) as socket:
                    problem = ""
                    await self._carry(socket)
            except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
                before, problem = problem, str(error) or type(error).__name__
                if problem != before:  # a run that has ended stays away
                    log.info("connection to %s: %s", self._manager.url.origin(), problem)
            await asyncio.sleep(RECONNECT_S)

    async def _carry(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        open_jobs: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as jobs:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    break
                frame, body = tunnel_frames.read_for_worker(message.data)
                if isinstance(frame, tunnel_frames.Open):
                    job = jobs.create_task(self._exchange(socket, frame, body), name=frame.path)
                    open_jobs[frame.id] = job
                    job.add_done_callback(partial(_forget, open_jobs, frame.id))
                elif frame.id in open_jobs:
                    open_jobs[frame.id].cancel()
            for job in list(open_jobs.values()):
                job.cancel()

    async def _exchange(
        self, socket: aiohttp.ClientWebSocketResponse, request: tunnel_frames.Open, body: bytes
    ) -> None:
        number = request.id
        try:
            if request.path not in tunnel_frames.ENGINE_PATHS:
                raise aiohttp.ClientError(f"{request.path} is not for managers")
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=3.0)
            async with self._session.request(
                request.method,
                self._engine.join(URL(request.path)),
                data=body if request.method == "POST" else None,
                headers=self._headers,
                timeout=timeout,
            ) as answer:
                await socket.send_bytes(
                    tunnel_frames.pack(tunnel_frames.Head(id=number, status=answer.status))
                )
                async for part in answer.content.iter_any():
                    await socket.send_bytes(tunnel_frames.pack(tunnel_frames.Data(id=number), part))
            await socket.send_bytes(tunnel_frames.pack(tunnel_frames.End(id=number)))
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            frame = tunnel_frames.Error(id=number, words=f"{type(error).__name__}: {error}")
            # If it is the socket that broke, the manager knows.
            with suppress(aiohttp.ClientError, ConnectionError):
                await socket.send_bytes(tunnel_frames.pack(frame))


def _forget(open_jobs: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    open_jobs.pop(number, None)
