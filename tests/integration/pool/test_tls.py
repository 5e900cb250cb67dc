"""A manager with a certificate of its own: who trusts it comes in, and nobody else."""

import asyncio
import subprocess
import sys
import threading
from types import SimpleNamespace

import aiohttp
import pytest

from rl_agent.errors import ConfigError, RetryLater, deliberate
from rl_agent.http.tls import trusting
from rl_agent.pool.client import Manager, ask
from rl_agent.trainer.grpo.publish.feed import Announcer
from rl_agent.worker.main import Worker
from tests.integration.pool.workers import settings
from tests.support.certificate import make_certificate
from tests.support.pool_setup import GREEDY, collector, expected, item, manager


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def secured(certificate):
    return manager(f"tls_certificate={certificate[0]}", f"tls_key={certificate[1]}")


@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "held connection"])
async def test_a_worker_and_a_collector_that_trust_the_certificate_work_as_ever(
    tmp_path, certificate, is_direct
):
    trusted = aiohttp.TCPConnector(ssl=trusting(certificate[0]))
    leaving = asyncio.Event()
    async with secured(certificate) as pool:
        assert pool.url.startswith("https://")
        async with aiohttp.ClientSession(connector=trusted) as session, asyncio.TaskGroup() as jobs:
            jobs.create_task(Worker(settings(pool.url, tmp_path, is_direct=is_direct), session).run(leaving))
            await pool.ready(1)
            async with collector(pool.url, tls_ca=certificate[0]) as client:
                response = await client.generate([40, 3, 5, 6], GREEDY, request_id="q")
            leaving.set()
        assert list(response.token_ids) == expected(40, 3)
        assert pool.state.departed[-1].reason == "left in order"


async def test_whoever_does_not_trust_the_certificate_is_told_so_at_once(tmp_path, certificate):
    async with secured(certificate) as pool:
        with pytest.raises(ConfigError, match="untrusted certificate"):
            await asyncio.to_thread(ask, pool.url, "/status", None)
        async with aiohttp.ClientSession() as session:
            with pytest.raises(BaseExceptionGroup) as caught:
                await Worker(settings(pool.url, tmp_path, model=None), session).run(asyncio.Event())
        assert isinstance(error := deliberate(caught.value), ConfigError)
        assert "untrusted certificate" in str(error) and "--tls-ca" in str(error)
        with pytest.raises(RetryLater):
            async with collector(pool.url):
                pass


async def test_a_trainer_announces_to_a_manager_whose_certificate_it_trusts(certificate):
    manifest = SimpleNamespace(digest="ab" * 32, delta_digest=None)
    snapshot = SimpleNamespace(weight_version=3, manifest=manifest)
    async with secured(certificate) as pool:
        announcer = Announcer(
            Manager(pool.url, None, certificate[0]),
            transfer_token="secret",
            sources=["tcp://127.0.0.1:7000"],
            every_s=60.0,
            max_staleness=0,
            finish_within_s=None,
        )
        with announcer:
            announcer.announce(snapshot)
            await asyncio.to_thread(announcer.wait, 20.0, threading.Event().is_set)
        assert pool.state.weights.weight_version == 3


async def test_the_command_line_joins_and_looks_with_the_certificate(tmp_path, certificate):
    async with secured(certificate) as pool:
        words = [sys.executable, "-m", "rl_agent.cli", "pool", "status", "--manager", pool.url]

        def look(*more: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run([*words, *more], capture_output=True, text=True, timeout=60)

        seen = await asyncio.to_thread(look, "--tls-ca", str(certificate[0]))
        assert seen.returncode == 0 and "requests  submitted 0" in seen.stdout, seen.stderr
        refused = await asyncio.to_thread(look)
        assert refused.returncode == 78 and "untrusted certificate" in refused.stderr


async def test_plain_http_gets_nothing_from_a_manager_with_a_certificate(certificate):
    async with secured(certificate) as pool:
        plain = pool.url.replace("https", "http")
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                async with session.post(plain + "/runs/r/requests", json={"requests": [item(0, 5)]}):
                    pass
        assert pool.runtime.pool.open_requests() == 0
