"""A manager's status becomes what a reconciler decides by, or one line about what is wrong with it."""

import asyncio
from threading import Event

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rl_agent.autoscaler.manager_link import HttpManager, view_of
from rl_agent.autoscaler.observation import PoolEngine, RunOver
from rl_agent.errors import ConfigError, RetryLater
from rl_agent.pool.demand.records import EngineKind, Wanted
from rl_agent.pool.manager_file import ManagerFile

ENGINES = [
    {"name": "rl-1-1", "running": 3, "state": "draining"},
    {"name": "x", "running": 0, "state": "ready"},
]
KIND = {"name": "spot", "price_per_hour": 1, "min_engines": 0, "max_engines": 4, "start_s": 60.0}
WANTED = {"counts": {"spot": 2}, "reason": "2 wanted", "kinds": [KIND], "present": {}, "spent": 0.0}
URL = "http://127.0.0.1:5000"


def test_engines_kinds_and_what_is_wanted_are_read():
    view = view_of({"engines": ENGINES, "wanted": WANTED}, URL)
    assert view.engines["rl-1-1"] == PoolEngine("rl-1-1", 3, True)
    assert not view.engines["x"].is_draining
    assert view.wanted == Wanted({"spot": 2}, "2 wanted")
    assert view.kinds == (EngineKind("spot", 1.0, 0, 4, 60.0),)


def test_a_manager_that_knows_no_kinds_wants_nothing_to_change():
    view = view_of({"engines": ENGINES, "wanted": {**WANTED, "kinds": [], "counts": {}}}, URL)
    assert view.wanted is None and view.kinds == ()


@pytest.mark.parametrize("status", [{}, [], {"engines": [{}]}, {"engines": [], "wanted": 3}])
def test_a_status_that_is_none_is_one_line(status):
    with pytest.raises(RetryLater, match=r"^http://127.0.0.1:5000/status cannot be read: .*"):
        view_of(status, URL)


def test_keys_that_a_newer_manager_adds_are_left_alone():
    view = view_of({"engines": [], "wanted": {**WANTED, "kinds": [{**KIND, "colour": "red"}]}}, URL)
    assert view.kinds == (EngineKind("spot", 1.0, 0, 4, 60.0),)


@pytest.mark.parametrize(
    ("status", "body", "raised"),
    [
        (401, b"", ConfigError),
        (403, b"", ConfigError),
        (429, b"", RetryLater),
        (500, b"", RetryLater),
        (502, b"<html>", RetryLater),
        (200, b"<html>", RetryLater),
    ],
)
async def test_what_a_manager_answers_is_read_or_one_line(status, body, raised):
    async def answer(request):
        return web.Response(status=status, body=body)

    async with RawTestServer(answer) as server:
        manager = HttpManager(f"http://127.0.0.1:{server.port}", lambda: "t", lambda: None)
        with pytest.raises(raised) as caught:
            await manager.view()
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


async def test_late_answer_from_the_old_address_does_not_restore_it(monkeypatch):
    class File:
        states = OLD = "http://127.0.0.1:1"

        def read_other(self, url):
            return None if url == self.states else self.states

    def answer(url, path, *words, **named):
        if url != File.OLD:
            return {"engines": [], "wanted": WANTED}
        if path == "/status":
            raise RetryLater("silent")
        may_end.wait(10.0)
        return {}

    monkeypatch.setattr("rl_agent.pool.client.ask", answer)
    may_end, file, moves = Event(), File(), []
    manager = HttpManager(File.OLD, lambda: "t", lambda: None, None, file, moves.append)
    late = asyncio.create_task(manager.report("rl-1", {}))
    await asyncio.sleep(0)
    file.states = "http://127.0.0.1:2"
    await manager.view()
    may_end.set()
    await late
    assert moves == ["http://127.0.0.1:2"]


@pytest.mark.parametrize(("admin_token", "sent"), [(None, "pool"), ("admin", "admin")])
async def test_a_token_that_drains_nothing_is_found_before_the_first_drain(monkeypatch, admin_token, sent):
    answers = {"pool": {"may_drain": False}, "admin": {"may_drain": True}}
    monkeypatch.setattr("rl_agent.pool.client.ask", lambda url, path, token, *_, **named: answers[token])
    manager = HttpManager(URL, lambda: "pool", lambda: admin_token)
    if sent == "admin":
        await manager.check_admin_token()
    else:
        with pytest.raises(ConfigError, match="lets this token drain no engine"):
            await manager.check_admin_token()


def test_run_is_over_only_once_manager_is_silent_and_its_file_is_gone(tmp_path):
    path = tmp_path / "pool.url"
    path.write_text("http://127.0.0.1:9\n")
    manager = HttpManager("http://127.0.0.1:9", lambda: None, lambda: None, file=ManagerFile(str(path)))
    with pytest.raises(RetryLater) as silence:
        asyncio.run(manager.view())
    assert not isinstance(silence.value, RunOver)
    path.unlink()
    with pytest.raises(RunOver, match=r"its run is over: .*pool\.url is gone"):
        asyncio.run(manager.view())
