"""Notices of the clouds, by stand-ins that speak the protocols of their metadata services."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rl_agent.worker import preemption
from rl_agent.worker.preemption import AnyNotice, AwsNotice, AzureNotice, GcpNotice
from tests.integration.pool.workers import worker
from tests.integration.worker.metadata_services import Aws, Azure, Gcp, served
from tests.support.pool_setup import are_exact, manager, until

LIMIT_S = 10
SOURCES = {Aws: AwsNotice, Gcp: GcpNotice, Azure: AzureNotice}


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    if "shortest_notice" in request.node.name:
        return
    monkeypatch.setattr(preemption, "POLL_S", 0.05)
    monkeypatch.setattr(preemption, "SEARCH_S", 0.05)


@asynccontextmanager
async def watched(source):
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as jobs:
        job = jobs.create_task(preemption.wait_for_notice(source, session))
        yield job
        job.cancel()


async def notice_of(job):
    return await asyncio.wait_for(asyncio.shield(job), LIMIT_S)


async def give_notice(stand_in):
    """Let a cloud take its machine back, in its own way."""
    match stand_in:
        case Aws():
            stand_in.take_back()
        case Gcp():
            await stand_in.take_back()
        case Azure():
            stand_in.announce("Preempt", stand_in.name)


async def test_aws_is_asked_with_a_session_token_that_is_renewed_when_it_expires():
    aws, now = Aws(), datetime(2020, 1, 1, tzinfo=UTC)
    async with served(aws) as base, watched(AwsNotice(base, now=lambda: now)) as job:
        await until(lambda: aws.paths.count("spot/instance-action") == 2)
        assert aws.num_refused == 0
        aws.token = "AQAEAIrPOo-2=="
        await until(lambda: aws.paths.count("spot/instance-action") == 4)
        assert aws.num_refused == 1
        assert not job.done()
        aws.take_back()
        notice = await notice_of(job)
    assert "terminate" in notice.words
    assert notice.left_s == 120


@pytest.mark.parametrize(
    ("action", "left_s"),
    [
        ('{"action": "stop", "time": "2020-01-01T00:01:30Z"}', 90),
        ('{"action": "hibernate", "time": "2019-01-01T00:00:00Z"}', preemption.SHORTEST_S),
        ('{"action": "stop", "time": "2030-01-01T00:00:00Z"}', 120),
    ],
)
async def test_a_notice_leaves_the_time_it_names_within_what_the_cloud_promises(action, left_s):
    aws, now = Aws(), datetime(2020, 1, 1, tzinfo=UTC)
    aws.take_back(action)
    async with served(aws) as base, watched(AwsNotice(base, now=lambda: now)) as job:
        assert (await notice_of(job)).left_s == left_s


async def test_google_holds_the_question_and_the_notice_comes_at_once():
    gcp = Gcp()
    async with served(gcp) as base, watched(GcpNotice(base)) as job:
        await until(lambda: gcp.num_held == 1)
        assert gcp.num_asked == 3  # one while the service was unavailable, one for the value, the held one
        assert not job.done()
        await gcp.take_back()
        assert (await notice_of(job)).left_s == 30


async def test_azure_events_of_other_machines_and_kinds_are_no_notice():
    azure, now = Azure("spot_7"), datetime(2016, 9, 19, 18, 29, 27, tzinfo=UTC)
    async with served(azure) as base, watched(AzureNotice(base, now=lambda: now)) as job:
        azure.announce("Preempt", "spot_8")
        azure.announce("Freeze", "spot_7")
        await until(lambda: azure.num_asked == 3)
        assert not job.done()
        azure.announce("Preempt", "spot_7")
        notice = await notice_of(job)
    assert "Preempt" in notice.words
    assert notice.left_s == 20


async def test_a_started_event_of_azure_names_no_time():
    azure = Azure()
    azure.announce("Preempt", azure.name, not_before="")
    async with served(azure) as base, watched(AzureNotice(base)) as job:
        assert (await notice_of(job)).left_s == 30


@pytest.mark.parametrize("cloud", [Aws, Azure])
async def test_a_service_that_answers_late_is_heard(monkeypatch, cloud):
    """Later than it is asked again; what is too late is another matter."""
    monkeypatch.setattr(preemption, "AZURE_FIRST_S", 5)
    monkeypatch.setattr(preemption, "POLL_S", 0.01)
    stand_in = cloud()
    async with served(stand_in) as base, watched(SOURCES[cloud](base)) as job:
        await until(lambda: (len(stand_in.paths) if cloud is Aws else stand_in.num_asked) > 1)
        stand_in.lasts_s = 0.2
        await give_notice(stand_in)
        await notice_of(job)


def test_metadata_timeout_is_above_two_polls_and_below_the_notice():
    assert 2 * preemption.POLL_S < preemption.ANSWER_S < 30 - preemption.SHORTEST_S


@pytest.mark.parametrize("cloud", [Aws, Gcp, Azure])
async def test_unreachable_metadata_service_and_its_return_are_logged_once(monkeypatch, caplog, cloud):
    caplog.set_level("INFO")
    monkeypatch.setattr(preemption, "POLL_S", 0.01)
    stand_in, is_broken, questions = cloud(), True, 0

    @web.middleware
    async def breaks(request, handler):
        nonlocal questions
        questions += 1
        if is_broken:
            return web.Response(status=500)
        return await handler(request)

    stand_in.app.middlewares.append(breaks)

    def lines(words):
        return sum(words in record.getMessage() for record in caplog.records)

    async with served(stand_in) as base, watched(SOURCES[cloud](base)) as job:
        await until(lambda: questions > 40)
        assert lines("no preemption notice can arrive, because the metadata service does not answer") == 1
        is_broken = False
        await until(lambda: lines("the metadata service answers again"))
        await give_notice(stand_in)
        await notice_of(job)
    assert lines("no preemption notice can arrive") == lines("answers again") == 1


@pytest.mark.parametrize("cloud", [Aws, Gcp, Azure])
async def test_auto_finds_the_cloud_that_this_machine_is_of(cloud):
    stand_in = cloud()
    async with served(stand_in) as base:
        source = AnyNotice(base)
        async with watched(source) as job:
            await give_notice(stand_in)
            await notice_of(job)
        assert type(source._found).__name__.startswith(cloud.__name__)


@pytest.mark.parametrize("cloud", [Aws, Gcp, Azure])
async def test_a_notice_drains_and_no_request_is_lost(tmp_path, cloud):
    stand_in, slow = cloud(), ("--interval", "0.005")
    (tmp_path / "other").mkdir()
    async with served(stand_in) as base, manager() as pool:
        async with worker(pool.url, tmp_path, notice=SOURCES[cloud](base), extra=slow) as (_, job):
            await pool.ready(1)
            await pool.submit("run", [200] * 8)
            await pool.until(lambda: any(engine.running for engine in pool.state.engines.values()))
            async with worker(pool.url, tmp_path / "other", name="spot-2"):
                await pool.ready(2)
                await give_notice(stand_in)
                await asyncio.wait_for(job, 20)
                samples = await pool.samples("run", at_least=8)
        assert are_exact(samples, 200)
        assert pool.state.departed[0].reason == "left in order"


@pytest.mark.parametrize("answer", ["<html>sign in here</html>", "[]", "null", '{"Events": [{}]}'])
@pytest.mark.parametrize("source", [AwsNotice, GcpNotice, AzureNotice, AnyNotice])
async def test_what_answers_like_no_cloud_is_no_notice_and_ends_no_worker(source, answer):
    questions = 0

    async def say(request: web.Request) -> web.Response:
        nonlocal questions
        questions += 1
        return web.Response(text=answer)

    async with RawTestServer(say) as server, watched(source(str(server.make_url("")).rstrip("/"))) as job:
        await until(lambda: questions >= 8)
        assert not job.done()
