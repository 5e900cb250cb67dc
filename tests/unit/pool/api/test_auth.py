"""Addresses may call and be engines; requests that a web page makes a browser send are refused."""

from itertools import product

import pytest
from aiohttp import web

from rl_agent.pool.api.auth import check_address, is_inside, is_local
from rl_agent.pool.api.openai_api import OpenAiApi
from rl_agent.pool.api.routes import PoolApi
from rl_agent.pool.settings import networks_of
from tests.support.pool_setup import item, manager, token_file

LAN = networks_of("allowed_engine_networks", ("10.1.0.0/16", "fd00::/8"))


@pytest.mark.parametrize(
    ("address", "is_there"),
    [
        ("10.1.255.255", True),
        ("10.2.0.0", False),
        ("::ffff:10.1.2.3", True),
        ("fd00::1%eth0", True),
        ("fe80::1%eth0", False),
        ("a.name", False),
        ("", False),
        (None, False),
    ],
)
def test_an_address_is_inside_a_network_however_it_is_written(address, is_there):
    assert is_inside(address, LAN) is is_there


def test_loopback_is_local():
    addresses = ("127.0.0.1", "::1", "localhost", "10.1.0.1")
    assert [is_local(address) for address in addresses] == [True, True, True, False]


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("10.9.0.1", "10.9.0.1"),
        ("10.9.0.1", "::ffff:10.9.0.1"),
        ("10.1.0.7", "10.9.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "::1"),
    ],
)
def test_an_engine_registers_itself_or_one_of_an_allowed_network(host, peer):
    check_address(host, peer, LAN)


@pytest.mark.parametrize(
    ("host", "peer", "status"),
    [
        ("10.9.0.2", "10.9.0.1", 403),
        ("127.0.0.1", "10.9.0.1", 403),  # the manager's own loopback
        ("169.254.169.254", "10.9.0.1", 403),  # the metadata of a cloud's machine
        ("engine.example", "10.9.0.1", 422),
    ],
)
def test_any_other_address_is_refused(host, peer, status):
    with pytest.raises(web.HTTPException) as refused:
        check_address(host, peer, LAN)
    assert refused.value.status == status


BATCH = {"requests": [item(0, 10)]}
PAGES = [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}]
ROUTES = [
    ("GET", "/status"),
    ("GET", "/metrics"),
    ("GET", "/runs/run/samples?after=0"),
    ("GET", "/engines/a/tunnel"),
    ("POST", "/runs/run/requests"),
    ("POST", "/engines/a/drain"),
    ("POST", "/v1/completions"),
    ("DELETE", "/runs/run"),
]


async def test_a_web_page_gets_nothing_and_does_nothing():
    async with manager() as pool:
        await pool.call("POST", "/runs/run/requests", BATCH)
        for headers, (method, path) in product(PAGES, ROUTES):
            body = BATCH if method == "POST" else None
            status, answer = await pool.call(method, path, body, headers=headers)
            assert status == 403, (headers, method, path, answer)
            assert "run" not in str(answer)
        assert set(pool.runtime.runs.by_name) == {"run"} and pool.runtime.pool.open_requests() == 1


KINDS = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]


async def test_a_body_that_a_page_may_send_without_asking_is_refused():
    async with manager() as pool:
        for kind, path in product(KINDS, ("/runs/run/requests", "/model", "/engines", "/v1/completions")):
            headers = {"Content-Type": kind}
            async with pool.session.post(pool.url + path, data=b"{}", headers=headers) as answer:
                assert answer.status == 415, (kind, path)
                assert "Content-Type: application/json" in await answer.text()
        assert not pool.runtime.runs.by_name


async def test_allowed_hosts_reach_a_manager_and_with_a_token_any_name_does(tmp_path):
    async with manager("allowed_hosts=[Pool.example.org]") as pool:
        assert (await pool.call("GET", "/status", headers={"Host": "pool.example.org:5000"}))[0] == 200
    right = {"Authorization": "Bearer the-token", "Host": "behind-a-proxy.example"}
    async with manager(f"token_file={token_file(tmp_path / 'token', 'the-token')}") as pool:
        assert (await pool.call("GET", "/status", headers=right))[0] == 200


async def test_every_route_but_health_is_behind_the_token(tmp_path):
    right = {"Authorization": "Bearer the-token"}
    texts = ("the-token", "Bearer", "Bearer the-toke", "Basic the-token", "Bearer the-token-and-more")
    wrong = [{}, *({"Authorization": text} for text in texts)]
    async with manager(f"token_file={token_file(tmp_path / 'token', 'the-token')}") as pool:
        config = pool.runtime.pool.config
        apis = (PoolApi(config, pool.runtime, pool.session, tmp_path), OpenAiApi(config, pool.runtime))
        routes = [(route.method, route.path) for api in apis for route in api.routes()]
        assert len(routes) > 15
        routes += [("get", "/nothing"), ("put", "/engines")]
        for method, path in routes:
            for headers in wrong:
                url = path.replace("{", "").replace("}", "")
                status, _ = await pool.call(method.upper(), url, headers=headers)
                assert status == (200 if path == "/health" else 401), (method, path, headers)
        assert (await pool.call("GET", "/status", headers=right))[0] == 200
