"""Connections to the manager's port: how many there are, and which of them are closed."""

import asyncio
import gzip
import json
import logging
import ssl

import pytest
import uvloop

from rl_agent.http.tls import trusting
from tests.support.certificate import make_certificate
from tests.support.pool_setup import manager

TOKEN = "the-token"
SOON = "login_timeout_s=0.2"
HEAD = b"POST /engines HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
RIGHT = b"Authorization: Bearer the-token\r\n"


@pytest.fixture
def guarded(tmp_path):
    """Words of a manager with a token."""
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "token").chmod(0o600)
    return f"token_file={tmp_path / 'token'}"


async def connect(pool, **more):
    return await asyncio.open_connection("127.0.0.1", int(pool.url.rpartition(":")[2]), **more)


async def ask(pool, sent: bytes) -> tuple[int, dict]:
    """Status and body of the answer; the body must be one line of JSON."""
    reader, writer = await connect(pool)
    async with asyncio.timeout(20):
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = await reader.readexactly(length)
    writer.close()
    assert b"\n" not in body.strip()
    return int(head.split()[1]), json.loads(body)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(20):
            return await reader.read() == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET /status HTTP/1.1\r\nX: ", HEAD + b"Content-Length: 9\r\n\r\n{"])
async def test_a_connection_without_a_whole_request_is_closed(sent, guarded):
    async with manager(guarded, SOON) as pool:
        reader, writer = await connect(pool)
        writer.write(sent)
        async with asyncio.timeout(20):
            raw_answer = await reader.read()
        assert not raw_answer or raw_answer.startswith(b"HTTP/1.1 401")
        writer.close()


async def test_a_header_that_drips_is_closed_too(guarded):
    async with manager(guarded, SOON) as pool:
        reader, writer = await connect(pool)
        writer.write(b"GET /status HTTP/1.1\r\nX: ")
        closed = asyncio.ensure_future(is_closed(reader))
        while not closed.done():
            writer.write(b"a")
            await asyncio.sleep(0.01)
        assert closed.result()
        writer.close()


async def test_a_client_that_has_shown_its_token_may_wait_for_longer(guarded):
    async with manager(guarded, SOON) as pool:
        await pool.call("POST", "/runs/r/requests", {"requests": [ITEM]}, headers=RIGHT_TOKEN)
        status, _ = await pool.call("GET", "/runs/r/samples?wait_s=1", headers=RIGHT_TOKEN)
        assert status == 200


ITEM = {"id": "a", "prompt_token_ids": [1], "max_tokens": 1}


RIGHT_TOKEN = {"Authorization": f"Bearer {TOKEN}"}


async def crowd(words, tls=None):
    """Open all the connections that may be open; a further call is answered once one of them has ended."""
    async with manager(*words, "max_connections=4", "login_timeout_s=60") as pool:
        silent = [await connect(pool, ssl=tls) for _ in range(4)]
        call = asyncio.ensure_future(pool.call("GET", "/status", headers=RIGHT_TOKEN))
        done, _ = await asyncio.wait([call], timeout=0.2)
        assert not done
        assert not any(reader.at_eof() for reader, _ in silent)
        silent[0][1].transport.abort()
        assert (await call)[0] == 200
        for _, writer in silent:
            writer.close()


async def test_beyond_the_most_connections_the_next_one_waits(guarded):
    await crowd([guarded])


def test_with_tls_on_the_loop_that_services_run_the_next_one_waits_too(tmp_path, guarded):
    """uvloop hands out another protocol than the one that it was given, once there is TLS."""
    certificate, key = make_certificate(tmp_path)
    words = (guarded, f"tls_certificate={certificate}", f"tls_key={key}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(crowd(words, trusting(certificate)))


async def test_places_of_handshakes_that_fail_are_free_again(tmp_path):
    certificate, key = make_certificate(tmp_path)
    async with manager(f"tls_certificate={certificate}", f"tls_key={key}", "max_connections=2") as pool:
        for _ in range(6):
            reader, writer = await connect(pool)
            writer.write(b"no TLS\r\n\r\n")
            assert await is_closed(reader)
            writer.close()
        assert (await pool.call("GET", "/status"))[0] == 200


async def test_a_connection_whose_token_is_wrong_is_closed(guarded):
    async with manager(guarded) as pool:
        reader, writer = await connect(pool)
        writer.write(b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer wrong\r\n\r\n")
        async with asyncio.timeout(20):
            assert (await reader.read()).startswith(b"HTTP/1.1 401")
        writer.close()


async def test_a_handshake_that_is_not_finished_is_closed(tmp_path):
    certificate, key = make_certificate(tmp_path)
    words = (f"tls_certificate={certificate}", f"tls_key={key}", SOON)
    async with manager(*words) as pool:
        reader, writer = await connect(pool)
        assert await is_closed(reader)
        writer.close()
        context = trusting(certificate)
        assert isinstance(context, ssl.SSLContext)
        reader, writer = await connect(pool, ssl=context)
        assert await is_closed(reader)
        writer.close()
        assert (await pool.call("GET", "/status"))[0] == 200


BAD_HEADS = {
    "authorization that is no ASCII": (b"Authorization: Bearer \xff\xfe\r\n\r\n", 401),
    "authorization that is UTF-8": ("Authorization: Bearer schlüssel\r\n\r\n".encode(), 401),
    "bytes that are not gzip": (RIGHT + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
    "unknown encoding": (RIGHT + b"Content-Encoding: nonsense\r\nContent-Length: 2\r\n\r\n{}", 415),
    "brotli": (RIGHT + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}", 415),
    "length that is not a number": (RIGHT + b"Content-Length: two\r\n\r\n{}", 400),
    "length below 0": (RIGHT + b"Content-Length: -2\r\n\r\n{}", 400),
    "length above all": (RIGHT + b"Content-Length: 99999999999999\r\n\r\n{}", 413),
    "length of 30 digits": (RIGHT + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}", 400),
    "garbage for a chunk": (RIGHT + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n", 400),
    "huge header": (RIGHT + b"X: " + b"a" * 99_999 + b"\r\n\r\n", 400),
    "too many headers": (RIGHT + b"".join(b"X%d: a\r\n" % n for n in range(999)) + b"\r\n", 400),
    "NUL in a header": (RIGHT + b"X: \x00\r\n\r\n", 400),
    "secret that is no ASCII": (RIGHT + b"X-Engine-Secret: \xff\r\nContent-Length: 2\r\n\r\n{}", 422),
    "host twice": (RIGHT + b"Host: 127.0.0.2\r\nContent-Length: 2\r\n\r\n{}", 400),
}


BAD_PATHS = [
    "/engines/%/beat",
    "/engines/%ff/beat",
    "/engines/%00/beat",
    "/engines/%0a/beat",
    "//",
    "/%2e%2e/",
]
BAD_PATHS += ["/runs/%00/requests", "/runs/%ff/requests", "/é", "*", "http://["]


async def test_a_bad_head_gets_one_line_and_leaves_no_traceback(guarded, caplog):
    caplog.set_level(logging.INFO)
    async with manager(guarded) as pool:
        for name, (head, status) in BAD_HEADS.items():
            answer = await ask(pool, HEAD + head)
            assert answer[0] == status, (name, answer)
            assert answer[1]["error"]["message"]
        for path in BAD_PATHS:
            head = HEAD.replace(b"/engines", path.encode()) + RIGHT + b"Content-Length: 2\r\n\r\n{}"
            status, answer = await ask(pool, head)
            assert 400 <= status < 500, (path, answer)
            assert answer["error"]["message"]
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.WARNING]


async def test_a_body_is_not_inflated_whoever_sends_it(guarded, monkeypatch):
    def inflate(*_, **__):
        raise AssertionError("a body was inflated")

    monkeypatch.setattr("aiohttp.compression_utils.ZLibDecompressor.__init__", inflate)
    bomb = gzip.compress(bytes(2**20))
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(bomb)
    async with manager(guarded) as pool:
        assert (await ask(pool, head + b"\r\n" + bomb))[0] == 401
        assert (await ask(pool, head + RIGHT + b"\r\n" + bomb))[0] == 415


@pytest.mark.parametrize(
    "body", [b"Content-Length: 9\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n2;" + b"a" * 99_999]
)
async def test_a_body_that_does_not_come_is_not_waited_for(body, guarded, monkeypatch):
    monkeypatch.setattr("rl_agent.pool.api.bodies.BODY_TIMEOUT_S", 0.1)
    async with manager(guarded) as pool:
        status, answer = await ask(pool, HEAD + RIGHT + body)
    assert status == 408, answer


async def test_a_call_of_an_engine_or_a_person_is_short(guarded):
    async with manager(guarded) as pool:
        sent = HEAD + RIGHT + b"Content-Length: 300000\r\n\r\n"
        assert (await ask(pool, sent))[0] == 413
