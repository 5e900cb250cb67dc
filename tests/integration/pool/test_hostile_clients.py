"""Clients without a token, or with bad intentions, get words from the manager, and nothing else."""

import io

import pytest

from rl_agent.pool.api.bodies import CALL_BYTES
from rl_agent.pool.api.openai_api import OpenAiApi
from rl_agent.pool.api.routes import PoolApi
from tests.support.pool_setup import manager, token_file

NOT_OURS = [
    "http://169.254.169.254:80",
    "http://[::ffff:169.254.169.254]:80",
    "http://0.0.0.0:80",
    "http://224.0.0.1:80",
    "http://192.0.2.7:80",
    "http://2130706433:80",
    "http://localhost:80",
    "http://127.0.0.1@169.254.169.254:80",
    "http://169.254.169.254:80#@127.0.0.1:80",
    "file:///etc/passwd",
    "http://127.0.0.1:0",
    "http://127.0.0.1:99999",
    "http://\x80:80",
]


@pytest.mark.parametrize("url", NOT_OURS)
async def test_registration_with_a_foreign_address_is_refused(url):
    async with manager() as pool:
        status, answer = await pool.call("POST", "/engines", {"name": "e", "url": url})
        assert status in (403, 422), answer
        assert answer["error"]["message"]
        assert not pool.state.engines


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


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[" * 100_000, 422),
        (b'{"requests": ' + b'[{"a":' * 5000 + b"1", 422),
        (b'{"requests": [{"id": "a", "prompt_token_ids": [NaN], "max_tokens": 1}]}', 422),
        (b'{"requests": [{"id": "a", "prompt_token_ids": [1], "max_tokens": 1e400}]}', 422),
        (b'{"requests": [{"id": "\xff", "prompt_token_ids": [1], "max_tokens": 1}]}', 422),
        (b'{"requests": [{"id": "\\ud800", "prompt_token_ids": [1], "max_tokens": 1}]}', 422),
        (b'{"requests": "' + b"a" * (CALL_BYTES + 1) + b'"}', 413),
    ],
    ids=["deep", "deep objects", "NaN", "infinite", "no UTF-8", "half a surrogate", "too long"],
)
async def test_bodies_made_to_hurt_are_refused(body, status):
    async with manager() as pool:
        headers = {"Content-Type": "application/json"}
        url = pool.url + "/runs/r/requests"
        async with pool.session.post(url, data=io.BytesIO(body), headers=headers) as answer:
            assert answer.status == status, await answer.text()
        assert pool.runtime.pool.open_requests() == 0
