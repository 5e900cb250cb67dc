"""A manager in this process and clients of it, for tests of the pool over its real HTTP."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp

from rl_agent.engine.client import ClientSettings, EngineClient
from rl_agent.engine.wire import Sampling
from rl_agent.http.tls import trusting
from rl_agent.pool.manager import running_manager
from rl_agent.pool.runtime.runtime import Runtime
from rl_agent.pool.scheduler.records import EngineState
from rl_agent.pool.schemas import ENGINE_SECRET
from rl_agent.pool.settings import load_settings
from tests.support.pool_world import EOS, truth

QUICK = ("lease_s=1.0", "heartbeat_s=0.2", "probe_interval_s=0.2", "stall_timeout_s=1.0", "port=0")
"""Times for tests; `port=0` takes any free one."""
GREEDY = Sampling(0.0, 1.0, -1, 0.0, 4096, 0)


def collector(url: str, *, timeout_s: float = 60.0, **settings: Any) -> EngineClient:
    """Return the collector's client of a pool or an engine, whose model is version 0."""
    return EngineClient(
        url, ClientSettings(request_timeout_s=timeout_s, retries=0, **settings), identify=lambda served: 0
    )


def token_file(path: Path, token: str) -> Path:
    """Write a token as only its owner may read it."""
    path.write_text(f"{token}\n")
    path.chmod(0o600)
    return path


def later_wins(words: Iterable[str]) -> list[str]:
    """Return the words, of those for one key the last: a configuration refuses a key that is set twice."""
    return list({word.partition("=")[0]: word for word in words}.values())


async def until(is_true: Callable[[], Any], limit_s: float = 90.0) -> None:
    """Wait for what no event reports."""
    async with asyncio.timeout(limit_s):
        while not is_true():  # noqa: ASYNC110 - what is waited for is not an event
            await asyncio.sleep(0.01)


class Client:
    """A consumer of one pool."""

    def __init__(self, url: str, session: aiohttp.ClientSession, runtime: Runtime) -> None:
        self.url = url
        self.session = session
        self.runtime = runtime
        self.state = runtime.pool.state

    def secret(self, engine: str) -> dict[str, str]:
        """The header of its worker, by its name or id."""
        entry = self.runtime.pool.find_engine(engine)
        return {ENGINE_SECRET: entry.offer.secret} if entry is not None else {}

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        """Calls about an engine have its secret, unless `headers` are given."""
        if (about := path.split("/"))[1] == "engines" and len(about) > 2:
            more.setdefault("headers", self.secret(about[2]))
        async with self.session.request(method, self.url + path, json=body, **more) as answer:
            text = await answer.text()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    async def join(self, url: str, **more: Any) -> str:
        status, answer = await self.call("POST", "/engines", {"name": url, "url": url, **more})
        assert status == 201, answer
        return str(answer["engine_id"])

    async def ready(self, count: int) -> None:
        await self.until(lambda: len(list(self.state.living(EngineState.READY))) == count)

    async def join_ready(self, *urls: str, **more: Any) -> None:
        """Register the first engines of this pool, and wait until it has them all."""
        for url in urls:
            await self.join(url, **more)
        await self.ready(len(urls))

    async def submit(self, run: str, lengths: Iterable[int], **more: Any) -> None:
        items = [item(number, length) for number, length in enumerate(lengths)]
        status, answer = await self.call("POST", f"/runs/{run}/requests", {"requests": items, **more})
        assert status == 202, answer

    async def samples(self, run: str, after: int = 0, *, at_least: int = 1, wait_s: int = 30) -> list[Any]:
        path = f"/runs/{run}/samples?after={after}&min={at_least}&wait_s={wait_s}"
        async with self.session.get(self.url + path) as answer:
            payload = await answer.read()
            assert answer.status == 200, payload
        return [json.loads(line) for line in payload.splitlines()]  # a text may hold other line breaks

    until = staticmethod(until)


def read_journal(path: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a journal that no manager has, each with its JSON read."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")]
    blobs = ("submission", "sample", "record")
    return [
        {key: json.loads(value) if key in blobs and value else value for key, value in row.items()}
        for row in rows
    ]


def item(number: int, length: int, **more: Any) -> dict[str, Any]:
    sampling = {"temperature": 0.0, "eos_token_ids": [EOS]}
    prompt = [length, number, 5, 6]
    return {"id": f"r{number}", "prompt_token_ids": prompt, "max_tokens": 4096, "sampling": sampling, **more}


def greedy_item(name: str, prompt: list[int], max_tokens: int, **sampling: Any) -> dict[str, Any]:
    """A request to a real engine, for the most probable tokens up to its limit."""
    sampling = {"temperature": 0.0, "ignore_eos": True, **sampling}
    return {"id": name, "prompt_token_ids": prompt, "max_tokens": max_tokens, "sampling": sampling}


def expected(length: int, number: int) -> list[int]:
    return truth((length, number, 5, 6))


def are_exact(samples: Iterable[Any], length: int | None = None) -> bool:
    """Return whether all samples have the tokens of a response of `length`, or of as many as they have."""
    return all(
        sample["token_ids"] == expected(length or len(sample["token_ids"]), int(sample["id"][1:]))
        for sample in samples
    )


@asynccontextmanager
async def manager(*words: str, versions: Path = Path("/nowhere")) -> AsyncIterator[Client]:
    config = load_settings(later_wins([*QUICK, *words]), {})
    connector = aiohttp.TCPConnector(ssl=trusting(config.tls_certificate))
    async with (
        running_manager(config, versions) as (url, runtime),
        aiohttp.ClientSession(connector=connector) as session,
    ):
        yield Client(url, session, runtime)
