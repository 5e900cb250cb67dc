"""Whatever is sent to any route, the manager answers in words and stays up: never a 5xx of its own making."""

import asyncio
import json
from contextlib import suppress
from urllib.parse import quote

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.pool_setup import manager

ROUTES = [
    ("POST", "/engines"),
    ("POST", "/engines/{}/beat"),
    ("POST", "/engines/{}/drain"),
    ("POST", "/engines/{}/leave"),
    ("POST", "/model"),
    ("POST", "/weights"),
    ("POST", "/publishers"),
    ("POST", "/fleets/{}"),
    ("POST", "/runs/{}/requests"),
    ("GET", "/runs/{}/samples?wait_s=0&after={}&min={}"),
    ("DELETE", "/runs/{}"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("DELETE", "/episodes/{}"),
    ("GET", "/engines/{}/tunnel"),
]
KEYS = [
    *("name", "url", "api_key", "capacity", "price_per_hour", "has_worker", "load", "running", "waiting"),
    *("deadline_s", "reason", "is_crash", "model", "weight_version", "requests", "id", "prompt_token_ids"),
    *("max_tokens", "sampling", "group", "prompt", "messages", "role", "content", "n", "stream", "stop"),
    *("digest", "sources", "transfer_token", "weights", "source", "is_fetching", "min_weight_version"),
    *("input", "type", "call_id", "output", "tools", "tool_choice", "text", "include"),
    *("timeout_s", "logprobs", "seed", "stream_options", "temperature", "episode"),
    *("fetched_version", "finish_within_s", "useful_from", "publisher", "holder", "lasts_s", "failed"),
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from(["http://127.0.0.1:1", "http://[::1]:0", "\x00", "a" * 300, 0, 1, -1]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=12,
)
BODIES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8).map(json.dumps) | st.text(max_size=40)
WORDS = st.text(min_size=1, max_size=20).map(lambda text: quote(text, safe=""))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(calls=st.lists(st.tuples(st.sampled_from(ROUTES), WORDS, BODIES), min_size=4, max_size=12))
def test_no_input_gets_a_server_error_or_a_lost_account(calls):
    async def play() -> None:
        async with manager("request_timeout_s=0.05", "heartbeat_s=0.02", "lease_s=0.2") as pool:
            for (method, route), word, body in calls:
                url = pool.url + route.replace("{}", word)
                headers = {"Content-Type": "application/json"}
                async with pool.session.request(method, url, data=body.encode(), headers=headers) as answer:
                    text = await answer.text()
                    # 503 and 504 say that no engine is there, which is true.
                    assert answer.status < 500 or answer.status in (501, 503, 504), (url, body, text)
            account = pool.state.account
            await pool.until(lambda: account.submitted == account.completed + account.failed)
            assert (await pool.call("GET", "/health"))[0] == 200

    asyncio.run(play())


WHAT_HTTP_KNOWS = (
    "GET |POST |/engines|/status|/%ff| HTTP/1.1|\r\n|\r\n\r\n|Host: 127.0.0.1|Content-Length: |5|{}|\x00"
    "|Transfer-Encoding: chunked|Content-Encoding: gzip|Expect: 100-continue|Content-Type: application/json"
    "|Upgrade: websocket|Connection: upgrade"
)
PIECES = st.sampled_from(WHAT_HTTP_KNOWS.encode().split(b"|"))
BYTES = st.lists(PIECES | st.binary(max_size=6), max_size=16).map(b"".join)


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(sent=st.lists(BYTES, min_size=8, max_size=16))
def test_whatever_bytes_come_only_their_own_connection_suffers(sent):
    async def say(port: int, words: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(OSError):  # the manager may close it before, between or after these
            writer.write(words)
            writer.write_eof()
            answer = await reader.read()
            assert not answer or not answer.startswith(b"HTTP/1.1 5"), (words, answer)
        writer.close()

    async def play() -> None:
        async with manager("login_timeout_s=0.1") as pool:
            port = int(pool.url.rpartition(":")[2])
            async with asyncio.timeout(60):
                await asyncio.gather(*(say(port, words) for words in sent))
            assert (await pool.call("GET", "/health"))[0] == 200

    asyncio.run(play())
