"""An engine in the pool belongs to whoever registered it: another one with the pool's token is not enough."""

from itertools import product

import pytest

from rl_agent.pool.schemas import ENGINE_SECRET
from tests.support.pool_setup import manager, token_file
from tests.support.simulated_engine import Behaviour
from tests.support.streaming_engine import StreamingEngine, serving

OWN = {ENGINE_SECRET: "a secret of twenty c"}
WORKER = {"name": "node-0", "has_worker": True}
CALLS = [
    ("POST", "beat", {}),
    ("POST", "beat", {"problem": "it burns"}),
    ("POST", "drain", {"deadline_s": 0}),
    ("POST", "leave", {"reason": "mine now"}),
    ("GET", "tunnel", None),
]
STRANGERS = [{}, {ENGINE_SECRET: "another of that length"}, {ENGINE_SECRET: ""}, {ENGINE_SECRET: "schlüssel"}]


@pytest.fixture
def guarded(tmp_path):
    token, admin = (token_file(tmp_path / name, f"the-{name}") for name in ("token", "admin"))
    return f"token_file={token}", f"admin_token_file={admin}", "lease_s=60"  # nobody beats


POOL = {"Authorization": "Bearer the-token"}
ADMIN = {"Authorization": "Bearer the-admin"}


async def test_who_has_only_the_pools_token_can_do_nothing_to_anothers_engine(guarded):
    async with manager(*guarded) as pool:
        status, joined = await pool.call("POST", "/engines", WORKER, headers=POOL | OWN)
        assert status == 201
        names = ("node-0", joined["engine_id"])
        for headers, (method, what, body), name in product(STRANGERS, CALLS, names):
            status, answer = await pool.call(method, f"/engines/{name}/{what}", body, headers=POOL | headers)
            assert status == 403, (headers, what, answer)
        for headers in STRANGERS:
            status, answer = await pool.call("POST", "/engines", WORKER, headers=POOL | headers)
            assert status in (409, 422), (headers, answer)
        assert list(pool.state.engines) == [joined["engine_id"]]
        [engine] = pool.state.engines.values()
        assert not engine.reason


async def test_the_secret_is_what_joining_gave_or_took(guarded):
    async with manager(*guarded) as pool:
        _, joined = await pool.call("POST", "/engines", WORKER, headers=POOL)
        assert len(joined["secret"]) >= 16
        right = POOL | {ENGINE_SECRET: joined["secret"]}
        assert (await pool.call("POST", "/engines/node-0/beat", {}, headers=right))[0] == 200
        status, again = await pool.call("POST", "/engines", WORKER, headers=right)
        assert (status, again["secret"]) == (201, joined["secret"])
        assert list(pool.state.engines) == [again["engine_id"]]
        assert (await pool.call("POST", "/engines/node-0/leave", {"reason": "x"}, headers=right))[0] == 200
        status, other = await pool.call("POST", "/engines", WORKER, headers=POOL | OWN)
        assert (status, other["secret"]) == (201, OWN[ENGINE_SECRET])
        assert (await pool.call("GET", "/status", headers=POOL))[1]["engines"][0]["name"] == "node-0"
        assert OWN[ENGINE_SECRET] not in str(await pool.call("GET", "/status", headers=POOL))


async def test_a_secret_that_could_be_guessed_is_not_taken():
    async with manager() as pool:
        status, answer = await pool.call("POST", "/engines", WORKER, headers={ENGINE_SECRET: "short"})
        assert status == 422 and ENGINE_SECRET in str(answer)


@pytest.mark.parametrize(("what", "body"), [("drain", {"deadline_s": 0}), ("leave", {"reason": "broken"})])
async def test_an_operator_may_send_any_engine_away(what, body, guarded):
    async with manager(*guarded) as pool:
        await pool.call("POST", "/engines", WORKER, headers=POOL | OWN)
        for method, other, content in CALLS:
            if other in ("beat", "tunnel"):
                path = f"/engines/node-0/{other}"
                assert (await pool.call(method, path, content, headers=ADMIN))[0] == 403
        assert (await pool.call("POST", f"/engines/node-0/{what}", body, headers=ADMIN))[0] == 200
        await pool.until(lambda: not pool.state.engines)


async def test_without_any_token_whoever_is_on_the_machine_is_its_operator(tmp_path):
    async with manager() as pool:
        await pool.call("POST", "/engines", WORKER, headers=OWN)
        assert (await pool.call("POST", "/engines/node-0/beat", {}, headers={}))[0] == 403
        assert (await pool.call("POST", "/engines/node-0/leave", {"reason": "x"}, headers={}))[0] == 200
    async with manager(f"admin_token_file={token_file(tmp_path / 'admin', 'the-admin')}") as pool:
        await pool.call("POST", "/engines", WORKER, headers=OWN)
        assert (await pool.call("POST", "/engines/node-0/leave", {"reason": "x"}, headers={}))[0] == 403
        assert (await pool.call("POST", "/engines/node-0/leave", {"reason": "x"}, headers=ADMIN))[0] == 200


async def test_an_engine_that_comes_back_by_itself_keeps_its_secret():
    engine = StreamingEngine(Behaviour(), interval_s=0.002)
    async with manager("lease_s=0.5", "heartbeat_s=0.1") as pool, serving(engine) as a:
        status, joined = await pool.call("POST", "/engines", {"name": "e", "url": a.url}, headers=OWN)
        assert status == 201
        await pool.ready(1)
        engine.stop()
        await pool.until(lambda: not pool.state.engines)
        engine.resume()
        await pool.ready(1)
        [back] = pool.state.engines
        assert back != joined["engine_id"]
        assert (await pool.call("POST", f"/engines/{back}/beat", {}, headers=OWN))[0] == 200


async def test_who_asks_what_is_wanted_is_told_whether_its_token_drains(guarded):
    async with manager(*guarded) as pool:
        answers = [await pool.call("GET", "/wanted", headers=headers) for headers in (POOL, ADMIN)]
    assert [answer["may_drain"] for _, answer in answers] == [False, True]
    async with manager() as pool:
        assert (await pool.call("GET", "/wanted"))[1]["may_drain"]


async def test_a_key_of_an_engine_with_a_line_break_is_refused():
    engine = {"name": "e", "url": "http://127.0.0.1:1", "api_key": "key\r\nX-Other: header"}
    async with manager() as pool:
        status, answer = await pool.call("POST", "/engines", engine)
    assert status == 422 and "api_key" in answer["error"]["message"]
